"""What should change: values that the worker carries out."""
