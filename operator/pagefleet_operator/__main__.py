"""`python -m pagefleet_operator`: runs the operator."""

import asyncio
import logging
import os
import sys

from pagefleet_operator import logs, settings


def main() -> int:
    """Parse the flags, run until told to stop; the exit status of the process."""
    parsed = settings.parse(sys.argv[1:], os.environ)
    logs.configure(parsed.log_format)
    from pagefleet_operator import program  # after the flags: a wrong one is answered at once, without kopf

    try:
        asyncio.run(program.run(parsed))
    except Exception:
        logging.getLogger(__name__).exception("operator_failed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
