"""Runner tests."""

from tests.pagefleet_engine.torch_tests import one_thread, pytest_ignore_collect

__all__ = ["one_thread", "pytest_ignore_collect"]
