"""What was seen and found out, as frozen values. Pure."""
