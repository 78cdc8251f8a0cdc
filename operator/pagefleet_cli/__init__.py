"""The command line: `pagefleet`, also `kubectl pagefleet`."""
