"""Sends the phases of a workload to a server, from several processes where one is too slow.

One Python process can read about 10,000 chunks a second; a server sends twice as many. So chains
are distributed among processes, each with an event loop of its own.

Knows: bodies, processes. Does not know: what is in the chains (`phases`), or what the outcomes are
used for (`report`).
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain as joined

import aiohttp

from cli.load import Outcome, Sender
from cli.phases import Chain, Phase, prompts_of
from cli.workload import PATHS, stream_body


@dataclass(frozen=True, slots=True)
class Server:
    """The server to load, the model to name, and the timeout."""

    url: str
    key: str
    model: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class _Share:
    """What one process does of a phase."""

    server: Server
    chains: tuple[Chain, ...]
    concurrency: int


def drive(phase: Phase, server: Server, processes: int) -> tuple[list[Outcome], float]:
    """Run a phase; its outcomes, and the seconds from the first request to the last end."""
    shares = _shares(phase, server, processes)
    if len(shares) == 1:
        outcomes = _run(shares[0])
    else:
        # Spawned, not forked: a fork of a process with threads may stand still.
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(len(shares), mp_context=spawn) as pool:
            outcomes = list(joined.from_iterable(pool.map(_run, shares)))
    began = min(outcome.sent_at for outcome in outcomes)
    return outcomes, max(outcome.sent_at + outcome.e2e_s for outcome in outcomes) - began


def _shares(phase: Phase, server: Server, processes: int) -> list[_Share]:
    count = max(min(processes, phase.concurrency, len(phase.chains)), 1)
    return [
        _Share(
            server,
            phase.chains[index::count],
            phase.concurrency // count + (index < phase.concurrency % count),
        )
        for index in range(count)
    ]


def _run(share: _Share) -> list[Outcome]:
    return asyncio.run(_ask_all(share))


async def _ask_all(share: _Share) -> list[Outcome]:
    server = share.server
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=server.timeout_s)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, read_bufsize=1 << 20
    ) as session:
        sender = Sender(session, server.url + PATHS["completions"], server.key, every_chunk=True)
        return await run_chains(share.chains, share.concurrency, server.model, sender)


async def run_chains(
    chains: Sequence[Chain], concurrency: int, model: str, sender: Sender
) -> list[Outcome]:
    """Send each chain's turns in order, `concurrency` chains at once; an error ends a chain."""
    waiting, outcomes = deque(chains), list[Outcome]()

    async def keep_going() -> None:
        while waiting:
            for prompt, output in prompts_of(waiting.popleft()):
                body = stream_body(model, output) | {"prompt": prompt}
                outcome = await sender.ask(body)
                outcomes.append(outcome)
                if outcome.error is not None:
                    break

    async with asyncio.TaskGroup() as callers:
        for _ in range(min(concurrency, len(chains))):
            callers.create_task(keep_going())
    return outcomes
