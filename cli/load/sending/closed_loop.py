"""Closed-loop load: each caller sends its next request when its last answer has ended."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from cli.load.phases import Chain, LoadPhase, prompts_of
from cli.load.sender import (
    PATHS,
    Body,
    LoadTarget,
    RequestOutcome,
    Sender,
    load_session,
    stream_body,
)
from cli.load.sending.processes import LoadProcesses, wall_seconds


async def closed_loop(
    chains: Iterable[Iterable[Body]],
    concurrency: int,
    ask: Callable[[Body], Awaitable[RequestOutcome]],
    on_outcome: Callable[[RequestOutcome], None] = lambda _: None,
) -> list[RequestOutcome]:
    """Send each chain's bodies in sequence, at most `concurrency` chains at once.

    A failed request ends its chain. Returns the outcomes in the order in which requests ended.
    """
    outcomes, waiting = list[RequestOutcome](), deque(chains)

    async def keep_asking() -> None:
        while waiting:
            for body in waiting.popleft():
                outcome = await ask(body)
                outcomes.append(outcome)
                on_outcome(outcome)
                if outcome.error is not None:
                    break

    async with asyncio.TaskGroup() as callers:
        for _ in range(min(concurrency, len(waiting))):
            callers.create_task(keep_asking())
    return outcomes


def drive(
    phase: LoadPhase, server: LoadTarget, processes: LoadProcesses
) -> tuple[list[RequestOutcome], float]:
    """Run a phase. Return the outcomes, and the seconds from the first request to the last end."""
    count = max(min(processes.count, phase.concurrency, len(phase.chains)), 1)
    parts = [
        _Part(server, phase.chains[index::count], (phase.concurrency + count - 1 - index) // count)
        for index in range(count)
    ]
    outcomes = processes.run(_run, parts)
    return outcomes, wall_seconds(outcomes)


@dataclass(frozen=True, slots=True)
class _Part:
    server: LoadTarget
    chains: Sequence[Chain]
    concurrency: int


def _run(part: _Part) -> list[RequestOutcome]:
    bodies = (
        (stream_body(part.server.model, output) | {"prompt": prompt} for prompt, output in prompts)
        for prompts in map(prompts_of, part.chains)
    )

    async def run() -> list[RequestOutcome]:
        async with load_session(part.server.timeout_s) as session:
            url = part.server.url + PATHS["completions"]
            sender = Sender(session, url, part.server.key, every_chunk=True)
            return await closed_loop(bodies, part.concurrency, sender.ask)

    return asyncio.run(run())
