"""The Kubernetes operator: turns InferenceServices into engine pods at the right number."""
