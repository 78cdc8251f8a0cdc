"""Everything that is heard from the API server or said to it."""
