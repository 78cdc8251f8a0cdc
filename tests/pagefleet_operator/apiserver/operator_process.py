"""The operator with other intervals: `python -m …operator_process TIMINGS_JSON [flags]`."""

import asyncio
import dataclasses
import json
import os
import sys

from pagefleet_operator import logs, program, settings


def main() -> None:
    """The same program as `python -m pagefleet_operator`; only the waiting is shorter."""
    parsed = settings.parse(sys.argv[2:], os.environ)
    timings = dataclasses.replace(parsed.timings, **json.loads(sys.argv[1]))
    logs.configure(parsed.log_format)
    asyncio.run(program.run(dataclasses.replace(parsed, timings=timings)))


if __name__ == "__main__":
    main()
