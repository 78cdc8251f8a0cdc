"""`python -m pagefleet_fetch URI --into DIR`: fetches a model; the exit status says why it could not."""

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pagefleet_api import quantity
from pagefleet_api.download import DownloadFailure
from pagefleet_api.log_lines import JsonLines
from pagefleet_fetch.telling import Address

_TERMINATED = 143
_CHATTY = ("httpx", "httpx2", "huggingface_hub")


def main(argv: Sequence[str]) -> int:
    """Fetch once; the exit status. What a person must know is the last line on standard error."""
    options = _options(argv)
    _configure_logs()
    # A process that is number 1 of its container is not ended by SIGTERM unless it says so; all is on the disk.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(_TERMINATED))
    from pagefleet_fetch.collecting import Limit  # after the flags: a wrong one is answered at once
    from pagefleet_fetch.download import Patience
    from pagefleet_fetch.errors import EXIT_STATUS, FetchError, TooSlow, Unavailable
    from pagefleet_fetch.fetching import Request, fetch
    from pagefleet_fetch.holding import fetch_and_hold
    from pagefleet_fetch.pace import Floor
    from pagefleet_fetch.telling import Board, telling

    board = Board()
    request = Request(
        uri=options.uri,
        into=Path(options.into).absolute(),
        revision=options.revision,
        only_facts=options.only_facts,
        same_origin=options.same_origin,
        limit=None if options.limit is None else Limit(options.limit, frozenset(options.in_use)),
        parallel=options.parallel,
        patience=Patience(options.attempts, options.first_delay_s, Floor(options.min_rate, options.min_rate_window_s)),
        environment=os.environ,
        board=board,
    )
    try:
        with telling(board, options.tell):
            if options.hold:
                fetch_and_hold(request, board)
            record = fetch(request)
    except FetchError as error:
        busy, after_s = isinstance(error, Unavailable | TooSlow), getattr(error, "after_s", None)
        _tell(DownloadFailure(error=" ".join(str(error).split()), busy=busy, after_seconds=after_s), error, options)
        return EXIT_STATUS[type(error)]
    print(json.dumps({"folder": str(request.into), "revision": record.revision, "bytes": record.size_bytes}))
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(argv)
    if options.hold and options.tell is None:
        parser.error("--hold says at the address of --tell that the model is there: give --tell [HOST]:PORT")
    return options


def _tell(failure: DownloadFailure, error: Exception, options: argparse.Namespace) -> None:
    """To the kubelet by a file, to a person on standard error, to a program on the last line."""
    if options.error_file is not None:
        Path(options.error_file).write_text(failure.error, encoding="utf-8")
    logging.getLogger(__name__).error("fetch_failed", extra={"error": failure.error, "kind": type(error).__name__})
    print(failure.error, file=sys.stderr, flush=True)
    print(failure.line(), flush=True)


def _configure_logs() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="pagefleet_fetch",
        description="Fetches a model into a folder: verified, resumable, all or nothing. Credentials are read from the "
        "environment: HF_TOKEN, HF_ENDPOINT, AWS_*, GOOGLE_*, AZURE_*, HTTP_AUTHORIZATION.",
        epilog="exit status: 0 the model is there; 2 wrong flags; 3 denied; 4 no such model; 5 not a usable model; "
        "6 no space; 7 the folder holds something else; 8 no answer; 9 the bytes are not the published ones; "
        "10 they come too slowly",
        allow_abbrev=False,
    )
    result.add_argument("uri", help="hf:// s3:// gs:// az:// http:// https:// or file://")
    result.add_argument(
        "--into", required=True, metavar="DIR", help="the model's folder; made by one rename at the end"
    )
    result.add_argument("--revision", help="commit, tag or branch on the hub")
    _add_restrictions(result)
    result.add_argument(
        "--limit",
        type=quantity.to_bytes,
        metavar="SIZE",
        help="of all models beside DIR, as 200Gi: the oldest go first",
    )
    result.add_argument(
        "--in-use", action="append", default=[], metavar="NAME", help="a folder beside DIR that must stay; repeatable"
    )
    result.add_argument(
        "--hold",
        action="store_true",
        help="stay until SIGTERM: answer GET /held at --tell once the model is there, keep others from removing it, "
        "end when it is not whole any more",
    )
    result.add_argument("--error-file", metavar="FILE", help="also write the failure there, for the kubelet to tell")
    result.add_argument(
        "--tell", type=Address.parse, metavar="[HOST]:PORT", help="answer GET /progress there with how far it is"
    )
    result.add_argument("--parallel", type=int, default=8, help="files at a time (default %(default)s)")
    _add_patience(result)
    return result


def _add_restrictions(result: argparse.ArgumentParser) -> None:
    result.add_argument("--only-facts", action="store_true", help="only what says how large the model is")
    result.add_argument(
        "--same-origin", action="store_true", help="of http:// and https://: follow no redirect to another address"
    )


def _add_patience(result: argparse.ArgumentParser) -> None:
    result.add_argument(
        "--attempts",
        type=int,
        default=6,
        help="failures in a row without a new byte, for each file (default %(default)s)",
    )
    result.add_argument(
        "--first-delay-s",
        type=float,
        default=1.0,
        help="before the second try; doubles up to 30 s (default %(default)s)",
    )
    result.add_argument(
        "--min-rate",
        type=quantity.to_bytes,
        default="100Ki",
        metavar="SIZE",
        help="a second, of all files together; slower is a failure, tried again (default %(default)s; 0: any rate)",
    )
    result.add_argument(
        "--min-rate-window-s", type=float, default=60.0, help="over which it is an average (default %(default)s)"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
