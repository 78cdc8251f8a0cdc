"""Models before there are pods: downloads onto claims and nodes, and what a fit check needs."""
