"""What a step costs the host once device and host tier are full.

    python -m benchmarks.full_cache [--rounds 7] [--disk-blocks-per-s 300] [--quick]

Long prompts that are asked for twice, so that they have a right to the disk, then round after round
of 256 new requests at once: device, host and disk fill up, in this order. The engine's core decides
and settles every step; device and tiers are those of `modelled`, which take no time of the host. A
line has the round's milliseconds of the host a step, with its 256 clients, and the blocks of each
tier at its end.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Annotated

import typer

from benchmarks.modelled import VOCAB, Replay, StepModel, Stream
from benchmarks.modelled_tiers import DISK_BLOCKS_PER_S
from benchmarks.record import emit
from engine.draft import StepLimits
from prefix_cache.shelf import Tiers


@dataclass(frozen=True, slots=True)
class Sizes:
    """Blocks of the tiers, and the requests."""

    pool_tokens: int
    tiers: Tiers
    prompts: int  # that are asked for twice
    prompt_tokens: int
    requests: int  # of a round
    most_tokens: int  # of a new prompt or an answer


FULL = Sizes(880_000, Tiers(15_600, 512, ahead=1_024), 64, 2_000, 256, 1_024)
QUICK = Sizes(3_200, Tiers(80, 20, ahead=20), 16, 64, 8, 128)


def asked_twice(replay: Replay, sizes: Sizes, dice: random.Random) -> list[Stream]:
    """Two requests for each of some long prompts."""
    prompts = [
        tuple(dice.choices(range(10, VOCAB), k=sizes.prompt_tokens)) for _ in range(sizes.prompts)
    ]
    streams = []
    for prompt in prompts * 2:
        one = replay.stream("asker", sizes.prompt_tokens + 16, 8)
        one.shared = prompt
        streams.append(one)
    return streams


def new_ones(replay: Replay, sizes: Sizes, dice: random.Random) -> list[Stream]:
    """A round of requests that have nothing in common."""
    lengths = range(sizes.most_tokens // 10, sizes.most_tokens)
    return [
        replay.stream("asker", dice.choice(lengths), dice.choice(lengths))
        for _ in range(sizes.requests)
    ]


def ask_once(replay: Replay, streams: list[Stream]) -> float:
    """Have each ask once, and all answered; seconds of the host a step."""
    begun, steps = time.perf_counter(), len(replay.device.steps)
    for one in streams:
        one.start()
    replay.run(lambda: all(one.asked_at for one in streams))
    for one in streams:
        one.is_asking = False
    replay.run(lambda: all(one.finished for one in streams))
    return (time.perf_counter() - begun) / (len(replay.device.steps) - steps)


def main(
    rounds: int = 7,
    disk_blocks_per_s: Annotated[
        float, typer.Option(help="Blocks the disk writes.")
    ] = DISK_BLOCKS_PER_S,
    quick: bool = False,
) -> None:
    """One JSON line a round."""
    sizes, dice = QUICK if quick else FULL, random.Random(1)
    replay = Replay(
        StepLimits(8_192, 256, beside_visitors=256),
        model=StepModel(eager_launch=0.04),
        pool_tokens=sizes.pool_tokens,
        tiers=sizes.tiers,
        disk_blocks_per_s=disk_blocks_per_s,
    )
    cache = replay.core.parts.cache
    batches = [asked_twice(replay, sizes, dice)]
    batches += [new_ones(replay, sizes, dice) for _ in range(rounds)]
    for number, streams in enumerate(batches):
        seconds = ask_once(replay, streams)
        lower = {tier.value: use.used for tier, use in cache.lower_tiers().items()}
        used = {"device": cache.pool().used, **lower}
        name = f"round {number}" if number else "asked twice"
        emit(name, host_ms=seconds * 1e3, **{f"{tier}_blocks": n for tier, n in used.items()})
    replay.core.check_invariants()


if __name__ == "__main__":
    typer.run(main)
