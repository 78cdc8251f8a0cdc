"""A step of load on a real cluster, answered by the operator's own autoscaler and by a HorizontalPodAutoscaler."""
