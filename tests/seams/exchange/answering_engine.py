"""A real engine that computes one prompt slowly, and sends the prompt's blocks to engines that ask.

    python -m tests.seams.exchange.answering_engine MODEL_DIR ADDRESS PACE_S

The engine prints a line once other engines can ask. Each step takes `PACE_S` additional seconds.
The request's id is "first".
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from tests.seams.exchange.pair import BOUNDS, GREEDY, PROMPT, A
from tests.seams.support.real_engine import ExchangeAt, RealEngine

STEP_TOKENS = 17  # maximum number of tokens in a step, about one block


def main(model_dir: str, where: str, pace_s: str) -> None:
    bounds = replace(BOUNDS, max_batch_tokens=STEP_TOKENS)
    engine = RealEngine(model_dir, bounds, exchange=ExchangeAt(where))
    engine.submit("first", PROMPT, GREEDY, namespace=A)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        engine.step()
        time.sleep(float(pace_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
