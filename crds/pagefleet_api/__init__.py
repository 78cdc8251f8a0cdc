"""The contracts that the programs share: resource, launch flags, labels, metric names, KV sizing."""
