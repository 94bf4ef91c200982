"""The cost of a large answer without streaming, and the wait that it causes for other requests.

    python -m benchmarks.gateway.whole_answers [--choices 16] [--tokens 2048] [--likeliest 20]

Starts `ratoon serve` with the embedded model. A tenant requests --choices choices of --tokens
tokens with log-probabilities. Another tenant requests the list of models every 20 ms. Prints the
answer's size and time, the growth of the gateway's memory, and the other tenant's waits.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import httpx
import typer

from benchmarks.record import emit, p50_and_p99
from benchmarks.running import running
from gateway.startup.first_start import DEMO2_KEY, KEYS_FILE, read_keys
from tests.doubles.engine.shapes import EMBEDDED
from tests.doubles.processes import descendants, resident_mib

PAUSE_S, AFTER_S = 0.02, 1.0


def main(choices: int = 16, tokens: int = 2048, likeliest: int = 20) -> None:
    """Start a server, send the requests, and print the times."""
    with (
        tempfile.TemporaryDirectory() as directory,
        running(EMBEDDED, Path(directory) / "data", start_s=120, workers="1") as server,
    ):
        [gateway] = [pid for pid, command in descendants(server.pid) if "\0gateway\0" in command]
        other = read_keys(Path(directory) / "data" / KEYS_FILE)[DEMO2_KEY]
        waits, memory, is_over = list[float](), [resident_mib(gateway)], threading.Event()

        def watch() -> None:
            with _client(server.url, other) as client:
                while not is_over.wait(PAUSE_S):
                    began = time.perf_counter()
                    client.get("/v1/models").raise_for_status()
                    waits.append(time.perf_counter() - began)
                    memory.append(resident_mib(gateway))

        watching = threading.Thread(target=watch)
        watching.start()
        asked = {"model": server.model(), "n": choices, "max_tokens": tokens, "ignore_eos": True}
        asked |= {"messages": [{"role": "user", "content": "Hi"}]}
        asked |= {"logprobs": True, "top_logprobs": likeliest}
        began = time.perf_counter()
        with (
            _client(server.url, server.key) as client,
            client.stream("POST", "/v1/chat/completions", json=asked) as answer,
        ):
            answer.raise_for_status()
            size = sum(map(len, answer.iter_bytes()))
        spent_s = time.perf_counter() - began
        time.sleep(AFTER_S)
        is_over.set()
        watching.join()
        emit(
            "a whole answer",
            mb=size / 1e6,
            s=spent_s,
            grown_mib=max(memory) - memory[0],
            longest_wait_ms=max(waits) * 1e3,
            **p50_and_p99(waits),
        )


def _client(url: str, key: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}", "Accept-Encoding": "identity"}
    return httpx.Client(base_url=url, headers=headers, timeout=1800)


if __name__ == "__main__":
    typer.run(main)
