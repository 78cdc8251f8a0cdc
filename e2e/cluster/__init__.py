"""A real Kubernetes cluster on one machine: for the demo and the end-to-end tests, used by nothing in the product."""
