"""The core process: one loop that schedules, computes and delivers, and the socket it speaks through."""
