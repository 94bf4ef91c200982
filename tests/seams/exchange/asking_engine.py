"""A real engine of two ranks, each a process, that fetches a prompt which another one has.

    python -m tests.seams.exchange.asking_engine MODEL_DIR ADDRESS [DEVICE]

It prints a line before it asks; and one more in the end: what was fetched over which way, the
tokens, and those without the cache.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import msgspec

from engine.config import DeviceName
from engine.link.messages import FetchSource
from tests.engine.rigs.ranks import ProcessRanks
from tests.seams.exchange.pair import BOUNDS, GREEDY, PATIENT, PROMPT, A
from tests.seams.support.real_engine import ExchangeAt, RealEngine


class Answer(msgspec.Struct, frozen=True):
    """What it prints in the end."""

    fetched: int
    ways: list[str]
    tokens: list[int]
    uncached: list[int]


def main(model_dir: str, where: str, device: DeviceName = "cpu") -> None:
    asks, two = ExchangeAt(None, None, PATIENT), replace(BOUNDS, ranks=2, device=device)
    engine = RealEngine(model_dir, two, exchange=asks, start_ranks=ProcessRanks)
    say("ready")
    source = FetchSource(where, len(PROMPT), "first")
    engine.submit("again", PROMPT, GREEDY, namespace=A, source=source)
    engine.run()
    engine.submit("alone", PROMPT, GREEDY, namespace=A, use_cache=False)
    engine.run()
    answer = Answer(
        engine.finished("again").reused.fetched,
        list(engine.core.stats().exchange.fetched),
        engine.tokens("again"),
        engine.tokens("alone"),
    )
    say(msgspec.json.encode(answer).decode())
    engine.close()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
