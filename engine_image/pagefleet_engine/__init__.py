"""Pagefleet's paged-KV inference engine."""
