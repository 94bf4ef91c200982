"""A real engine that computes one prompt, slowly, and sends its blocks to who asks.

    python -m tests.seams.exchange.answering_engine MODEL_DIR ADDRESS PACE_S

It prints a line once it can be asked. Each of its steps takes `PACE_S` more seconds; the request
is called "first".
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from tests.seams.exchange.pair import BOUNDS, GREEDY, PROMPT, A
from tests.seams.support.real_engine import ExchangeAt, RealEngine

STEP_TOKENS = 17  # about a block in each step


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
