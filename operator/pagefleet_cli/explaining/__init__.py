"""What `explain` works with: who is asked, and how the answer reads."""
