"""What `simulate` works with: a policy from its file, and a run as text, figure and page."""
