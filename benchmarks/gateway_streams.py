"""How many tokens a gateway worker can stream a second, and the processor time of each.

    python -m benchmarks.gateway_streams --connections 128 --step-ms 10

The gateway is the real one with `--workers` workers, each pinned to a core while there are enough;
the load and an engine without a model share the last core. The engine sends every sequence one
token a step, like the real one, over the real link; a step begins when it is due, however far
behind the gateway is. Every connection keeps one streaming chat running. Prints the tokens a second
that reached the clients, and the gateway's processor time for each.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import msgspec
import typer
import uvloop

from benchmarks.gateway import chat_request, until_up
from benchmarks.processes import busy_seconds, children, cores, pin
from cli.flags import flattened
from engine.codec import Codec
from engine.link import SocketLink
from engine.messages import Cancel, Finished, Generate, Hello, StepReply, Tokens, Welcome
from engine.pulse import Echo
from gateway.config import GatewayConfig
from gateway.first_start import ensure_first_start
from tests.doubles.served import MODEL
from tests.doubles.tiny_model import write_tiny_model

WARM_UP_S = 2.0
SAID = b" the quick brown fox jumps over the lazy dog"
_EVENT_END = b"\n\n"
_LAST = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Options:
    """The load, and the number of workers."""

    connections: Annotated[int, typer.Option("--connections", help="Each with one stream.")] = 128
    step_ms: Annotated[float, typer.Option("--step-ms", help="Of the engine.")] = 10.0
    tokens: Annotated[int, typer.Option("--tokens", help="Of each answer.")] = 256
    seconds: Annotated[float, typer.Option("--seconds", help="Of counting.")] = 8.0
    workers: Annotated[int, typer.Option("--workers", help="Of the gateway.")] = 1
    port: Annotated[int, typer.Option("--port", help="Of the gateway.")] = 8098
    profile: Annotated[
        str | None, typer.Option("--profile", help="File for a profile of a single worker.")
    ] = None


@dataclass(slots=True)
class Running:
    """A sequence that the engine runs."""

    request: Generate
    told: int = 0


class PacedEngine:
    """Sends one token of every sequence each `step_s` seconds."""

    def __init__(self, socket: str, step_s: float) -> None:
        self._link = SocketLink(socket, codec=Codec())
        self._echo = Echo(socket)  # without it the gateway takes this engine for stopped
        self._step_s = step_s
        self._running: dict[bytes, dict[str, Running]] = {}

    def run(self) -> None:
        """Serve until the process ends."""
        due = time.monotonic()
        while True:
            self._take()
            for client, running in self._running.items():
                if running:
                    self._link.send(client, StepReply([*_step(running)]))
            due = max(due + self._step_s, time.monotonic() - 1.0)
            while (left := due - time.monotonic()) > 0:
                self._take(left)

    def _take(self, timeout_s: float = 0.0) -> None:
        for client, message in self._link.receive(timeout_s=timeout_s):
            if isinstance(message, Hello):
                self._link.send(client, _WELCOME)
            elif isinstance(message, Generate):
                running = self._running.setdefault(client, {})
                running[message.request_id] = Running(message)
            elif isinstance(message, Cancel):
                self._running[client].pop(message.request_id, None)


_WELCOME = Welcome(
    engine_id="paced",
    fingerprint=b"fingerprint",
    vocab_size=260,
    block_size=16,
    max_model_len=1 << 20,
    eos_token_ids=(257,),
    device="none",
    dtype="none",
)


def _step(running: dict[str, Running]) -> Iterable[Tokens | Finished]:
    for request_id, one in list(running.items()):
        first = one.told == 0
        token = SAID[one.told % len(SAID)]
        one.told += 1
        yield Tokens(
            request_id=request_id,
            token_ids=(token,),
            cached_tokens=0 if first else None,
            queue_seconds=0.0 if first else None,
        )
        if one.told == one.request.sampling.max_tokens:
            del running[request_id]
            yield Finished(
                request_id=request_id,
                reason="length",
                prompt_tokens=len(one.request.token_ids) // 4,
                cached_tokens=0,
                completion_tokens=one.told,
            )


class Client(asyncio.Protocol):
    """One connection that asks again as soon as it was answered; counts the events."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._transport: asyncio.Transport | None = None
        self.chunks = 0
        self.refused = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its type
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count; ask again at the end."""
        self.chunks += data.count(_EVENT_END)
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200"):
            self.refused = data
        if data.endswith(_LAST) and self._transport is not None:
            self._transport.write(self._request)


def worker_pids(gateway: int) -> list[int]:
    """The processes that serve: the workers, or the gateway itself when it is the only one."""
    return children(gateway) or [gateway]


async def measure(config: GatewayConfig, gateway: int, key: str, options: Options) -> None:
    """Open the connections, warm up, count for `options.seconds`, print."""
    await until_up(config.port)
    await asyncio.sleep(1.0)
    workers = worker_pids(gateway)
    for place, pid in enumerate(workers):
        pin(pid, [place % max(1, cores() - 1)])
    loop = asyncio.get_running_loop()
    chat = {
        "messages": [{"role": "user", "content": "u" * 100}],
        "max_tokens": options.tokens,
        "stream": True,
    }
    request = chat_request(key, chat)
    clients = []
    for _ in range(options.connections):
        _, client = await loop.create_connection(lambda: Client(request), "127.0.0.1", config.port)
        clients.append(client)
    await asyncio.sleep(WARM_UP_S)
    started, chunks = time.monotonic(), sum(client.chunks for client in clients)
    spent = {pid: busy_seconds(pid) for pid in workers}
    await asyncio.sleep(options.seconds)
    seconds = time.monotonic() - started
    chunks = sum(client.chunks for client in clients) - chunks
    used = [busy_seconds(pid) - before for pid, before in spent.items()]
    if not chunks or not sum(used):
        raise RuntimeError("no token reached the clients")
    refused = [client.refused for client in clients if client.refused]
    if refused:
        raise RuntimeError(refused[0].decode())
    offered = options.connections / options.step_ms * 1000
    print(f"offered            {offered:10.0f} tokens/s")
    print(f"delivered          {chunks / seconds:10.0f} tokens/s")
    print(f"processor          {sum(used) / chunks * 1e6:10.1f} us a token")
    print(f"one core           {chunks / sum(used):10.0f} tokens/s")
    print("share of a core    ", *(f"{one / seconds:9.2f}" for one in used))


def engine_process(socket: str, step_s: float) -> None:
    """The engine, on the last core."""
    os.sched_setaffinity(0, {cores() - 1})
    PacedEngine(socket, step_s).run()


def main(options: Options) -> None:
    """Start an engine and a gateway, load them, print."""
    with tempfile.TemporaryDirectory() as directory:
        run(Path(directory), options)


def run(directory: Path, options: Options) -> None:
    """One measurement in a directory of its own."""
    keys = asyncio.run(ensure_first_start(directory / "data", clock=time.time))
    config = GatewayConfig(
        model_dir=str(write_tiny_model(directory / "model")),
        model_name=MODEL,
        data_dir=str(directory / "data"),
        engine_socket=str(directory / "engine.sock"),
        port=options.port,
        workers=options.workers,
        grace_s=1.0,
    )
    engine = multiprocessing.get_context("spawn").Process(
        target=engine_process, args=(config.engine_socket, options.step_ms / 1000), daemon=True
    )
    engine.start()
    profiled = ["-m", "cProfile", "-o", options.profile] if options.profile else []
    command = [sys.executable, *profiled, "-m", "gateway", msgspec.json.encode(config).decode()]
    gateway = subprocess.Popen(command)
    try:
        os.sched_setaffinity(0, {cores() - 1})
        uvloop.run(measure(config, gateway.pid, keys.demo_key or "", options))
    finally:
        gateway.terminate()
        gateway.wait(30)
        engine.kill()


if __name__ == "__main__":
    typer.run(flattened(main))
