"""What `/metrics` says of an engine that has answered."""

from pathlib import Path

from tests.pagefleet_engine.server.inside import engine, until


async def test_prompts_are_compared_with_what_was_decoded(tiny: Path) -> None:
    async with engine(tiny) as running:
        assert (await running.complete("count", max_tokens=5)).status_code == 200
        await until(running.idle)
        assert await running.metric('pagefleet_memory_bytes{kind="process"') == 4096
        assert await running.metric("pagefleet_prefill_decode_token_ratio") == len("count") / (5 - 1)
