"""A real engine process with a fake runner: `python -m tests.doubles.engine_process SOCKET`.

Everything but the model is the real thing. `--pace` seconds pass per step, as if it computed;
`--break-at-step N` lets the device fail there for good.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from dataclasses import dataclass

from engine.assembly import Computer, Limits, ModelFacts, assemble
from engine.codec import Codec
from engine.core import EngineCore
from engine.draft import StepLimits
from engine.link import Link, SocketLink
from engine.process import StopSignal, serve
from engine.pulse import Echo
from engine.queue import QueueLimits
from engine.step import Launched, Runner, Step
from tests.doubles.fake_runner import VOCAB_SIZE, FakeRunner

BLOCK_SIZE = 4
NUM_BLOCKS = 2048


@dataclass
class PacedRunner:
    """A runner that takes its time, and may break."""

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


def fake_engine(link: Link, *, pace_s: float, break_at_step: int | None = None) -> EngineCore:
    """An engine that serves `link`."""
    runner = PacedRunner(FakeRunner(BLOCK_SIZE, NUM_BLOCKS), pace_s, break_at_step)
    facts = ModelFacts(b"f" * 32, VOCAB_SIZE, 4096, (0,), "cpu", "float32")
    return assemble(
        Computer(runner, facts, NUM_BLOCKS, BLOCK_SIZE, MemoryError),
        link,
        Limits(StepLimits(64, 16), QueueLimits(capacity=100), 10.0),
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("socket")
    parser.add_argument("--pace", type=float, default=0.002)
    parser.add_argument("--break-at-step", type=int)
    parser.add_argument("--grace", type=float, default=10.0)
    options = parser.parse_args(arguments)
    stop = StopSignal()
    stop.listen()
    with closing(SocketLink(options.socket, codec=Codec())) as link, closing(Echo(options.socket)):
        core = fake_engine(link, pace_s=options.pace, break_at_step=options.break_at_step)
        return serve(core, stop, grace_s=options.grace)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
