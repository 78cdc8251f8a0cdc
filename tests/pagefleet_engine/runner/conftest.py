"""Runner tests."""

from tests.pagefleet_engine.torch_tests import one_thread

__all__ = ["one_thread"]
