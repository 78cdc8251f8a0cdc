"""A thousand scale-downs on a real cluster while answers stream: how many answers were cut."""
