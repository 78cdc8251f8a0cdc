"""How fast the engine is: in process and over HTTP, against the machine's limits, with its answers checked."""
