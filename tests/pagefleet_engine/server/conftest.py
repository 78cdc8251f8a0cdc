"""One tiny model folder and one well-behaved engine for the tests of the server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.pagefleet_engine.server.inside import Inside, engine
from tests.pagefleet_engine.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model folder."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def fast(tiny: Path) -> AsyncIterator[Inside]:
    """An engine that answers at once: each answer repeats its prompt, token by token."""
    async with engine(tiny) as running:
        yield running
