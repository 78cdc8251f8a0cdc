"""What `plan` works with: the model's facts, the estimates, how they are printed."""
