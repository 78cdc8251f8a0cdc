"""How long random histories are: quick by default, as long as wanted by hand."""

import os

OPERATIONS = int(os.environ.get("PAGEFLEET_OPS", "10000"))
"""Operations of each long history; set PAGEFLEET_OPS=100000 for a long run."""
