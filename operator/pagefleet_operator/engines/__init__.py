"""What speaks to engines, and what they say in our words."""
