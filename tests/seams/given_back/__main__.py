"""A command that plays this package's games: `-m tests.seams.given_back --minutes 60 [--seed N]`.

A game is a random run of the users of one resource (`games.py`). All games are played with one
seed, then with the next seed, until the minutes are over. The first seed is `--seed` or random. If
a game finds a fault, the command prints the game and its seed, which find the fault again, and
exits with 1.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import sys
import time
from collections import Counter

from tests.seams.given_back.games import HANDED_ON, WAITS, play_any


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.seams.given_back")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="the first one")
    parser.add_argument("--only", choices=[*WAITS, *HANDED_ON], help="one game alone")
    given = parser.parse_args()
    logging.disable()  # the faults that games cause on purpose would fill the output with warnings
    sys.setswitchinterval(1e-5)  # makes threads alternate more often, in more orders
    first = random.SystemRandom().randrange(10**9) if given.seed is None else given.seed
    names = [given.only] if given.only else [*WAITS, *HANDED_ON]
    ends = {name: Counter[str]() for name in names}
    give_up, began = time.monotonic() + 60 * given.minutes, time.monotonic()
    for seed in itertools.count(first):
        for name in names:
            try:
                ends[name] += play_any(name, seed)
            except Exception:
                say(f"{name}: seed {seed}")
                raise
        if time.monotonic() > give_up:
            break
    say(f"seeds {first} to {seed}, {time.monotonic() - began:.0f} s: all comes back")
    for name in names:
        say(f"{name}: {dict(ends[name])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
