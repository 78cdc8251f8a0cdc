"""The API process: OpenAI endpoints and the pod's own, in front of the core process."""
