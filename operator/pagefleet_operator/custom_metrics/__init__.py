"""A server of `custom.metrics.k8s.io`, by which a HorizontalPodAutoscaler reads what engines say of their load."""
