"""A real engine of two ranks, each a process, that fetches a prompt which is computed elsewhere.

    python -m tests.seams.exchange.asking_engine MODEL_DIR ADDRESS

It prints a line before it asks, and steps on until it has an answer.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from engine.link.messages import FetchSource
from tests.engine.rigs.ranks import ProcessRanks
from tests.seams.exchange.pair import BOUNDS, GREEDY, PATIENT, PROMPT, A
from tests.seams.support.real_engine import ExchangeAt, RealEngine


def main(model_dir: str, where: str) -> None:
    asks, two = ExchangeAt(None, None, PATIENT), replace(BOUNDS, ranks=2)
    engine = RealEngine(model_dir, two, exchange=asks, start_ranks=ProcessRanks)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    source = FetchSource(where, len(PROMPT), "first")
    engine.submit("again", PROMPT, GREEDY, namespace=A, source=source)
    engine.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
