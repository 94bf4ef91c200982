"""A real engine process with a fake runner: `python -m tests.doubles.engine.engine_process SOCKET`.

Everything except the model is real. A step takes `--pace` seconds. With `--break-at-step N`, the
device fails permanently at step N.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from dataclasses import dataclass

from engine.core import EngineCore
from engine.drafting.draft import Drafting
from engine.link.codec import Codec
from engine.link.engine_end.socket_link import Link, SocketLink
from engine.process import StopSignal, serve
from engine.scheduling.fairness.queue import QueueLimits
from engine.scheduling.step_builder import StepLimits
from engine.startup.assembly import EngineLimits, LoadedRunner, assemble
from engine.step import Forward, Launched, Runner, Step
from tests.doubles.engine.drafting.late_drafting import LateDrafting
from tests.doubles.engine.fake_runner import VOCAB_SIZE, FakeRunner
from tests.doubles.engine.welcomes import welcome_of

BLOCK_SIZE = 4
NUM_BLOCKS = 2048


@dataclass
class PacedRunner:
    """A runner that waits for a fixed time in each step, and may fail permanently at a step."""

    runner: Runner
    pace_s: float = 0.0
    break_at_step: int | None = None
    num_steps: int = 0

    def launch(self, step: Step) -> Launched:
        self.num_steps += 1
        if self.num_steps == self.break_at_step:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        time.sleep(self.pace_s)
        return self.runner.launch(step)

    def launch_forward(self, step: Step) -> Forward:
        return self.runner.launch_forward(step)


def fake_engine(
    link: Link,
    *,
    pace_s: float,
    break_at_step: int | None = None,
    vocab_size: int = VOCAB_SIZE,
    block_size: int = BLOCK_SIZE,
    drafting: Drafting | None = None,
) -> EngineCore:
    """Make an engine with a fake runner that serves `link`."""
    fake = FakeRunner(block_size, NUM_BLOCKS, vocab_size)
    runner = PacedRunner(fake, pace_s, break_at_step)
    welcome = welcome_of(vocab_size, 4096, (0,), block_size=block_size, num_blocks=NUM_BLOCKS)
    core = assemble(
        LoadedRunner(runner, welcome, NUM_BLOCKS, MemoryError),
        link,
        EngineLimits(StepLimits(64, 16), QueueLimits(capacity=100), 10.0),
        drafting=drafting,
    )
    if isinstance(drafting, LateDrafting):
        drafting.attach(core._cache.tree)
    return core


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("socket")
    parser.add_argument("--pace", type=float, default=0.002)
    parser.add_argument("--break-at-step", type=int)
    parser.add_argument("--grace", type=float, default=10.0)
    options = parser.parse_args(arguments)
    stop = StopSignal()
    stop.listen()
    with closing(SocketLink(options.socket, codec=Codec())) as link:
        core = fake_engine(link, pace_s=options.pace, break_at_step=options.break_at_step)
        return serve(core, stop, grace_s=options.grace)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
