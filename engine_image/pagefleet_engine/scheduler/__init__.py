"""Which tokens are computed in the next step, and what their results mean for each request; pure."""
