"""The runners of stages: deferred work keeps its order, and unknown samples raise errors."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from msgspec import structs

from engine.ranks.leader import OtherRanks
from engine.ranks.ring import RingWriter
from engine.ranks.runner import LARGE_BYTES, RanksRunner
from engine.ranks.stage_runners import DeferringRunner, EarlierStageRunner
from engine.step import Bitmask, Forward, Launched, Row, Sampled, Step
from storage.disk.wire import Channel
from tests.engine.rigs.hand_driven import data_row, sequence_of

CPU = torch.device("cpu")


@dataclass
class Noted:
    """A launched step, or a forward pass, of a runner that records its calls."""

    notes: list[str]
    number: int

    def collect(self) -> list[Sampled]:
        return [Sampled(self.number)]

    def sample(self, allowed: Sequence[Bitmask | None]) -> Launched:
        masks = [int(mask[0]) for mask in allowed if mask is not None]
        self.notes.append(f"sample {self.number} {masks}")
        return self

    def skip(self) -> Launched:
        self.notes.append(f"skip {self.number}")
        return self


@dataclass
class Own:
    """A stage's own runner, which records each step by its number of rows."""

    notes: list[str] = field(default_factory=list)

    def launch(self, step: Step) -> Launched:
        self.notes.append(f"launch {len(step.rows)}")
        return Noted(self.notes, len(step.rows))

    def launch_forward(self, step: Step) -> Forward:
        self.notes.append(f"forward {len(step.rows)}")
        return Noted(self.notes, len(step.rows))


def step(num_rows: int) -> Step:
    return Step(tuple(row() for _ in range(num_rows)))


def row() -> Row:
    return data_row(sequence_of([1, 2, 3], block_ids=[0]), 0, 3)


def test_what_is_put_off_is_launched_in_order_as_far_as_it_is_asked_for() -> None:
    own = Own()
    runner = DeferringRunner(own)
    first, second, third = (runner.launch(step(n)) for n in (1, 2, 3))
    assert own.notes == []
    assert second.collect() == [Sampled(2)]
    assert own.notes == ["launch 1", "launch 2"]
    assert first.collect() == [Sampled(1)]
    runner.catch_up()
    assert own.notes == ["launch 1", "launch 2", "launch 3"]
    assert third.collect() == [Sampled(3)]
    assert len(own.notes) == 3


def test_before_a_large_step_is_told_nothing_is_put_off() -> None:
    """Run deferred work before a large step is sent.

    A stage that waits for a deferred launch would not read, and the ring would fill up.
    """
    own, (ours, theirs) = Own(), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, closing(OtherRanks(RingWriter(1), [Channel(ours)])) as others:
        runner = RanksRunner(DeferringRunner(own), others)
        runner.launch(step(1))
        runner.launch_forward(step(2)).skip()
        assert own.notes == [], "the control: small ones are"
        large = structs.replace(row(), block_ids=bytes(LARGE_BYTES + 1))
        runner.launch(Step((large, row(), row())))
        assert own.notes == ["launch 1", "forward 2", "skip 2"]


def test_masks_are_put_off_as_they_were() -> None:
    own, mask = Own(), np.array([5], np.int32)
    runner = DeferringRunner(own)
    masked = runner.launch_forward(step(1)).sample([mask, None])
    skipped = runner.launch_forward(step(2)).skip()
    mask[0] = 7
    assert own.notes == []
    assert skipped.collect() == [Sampled(2)]
    assert own.notes == ["forward 1", "sample 1 [5]", "forward 2", "skip 2"]
    assert masked.collect() == [Sampled(1)]


def test_a_stage_before_the_last_samples_nothing() -> None:
    own = Own()
    stage = EarlierStageRunner(own, CPU)
    assert stage.launch(step(1)).collect() == []
    assert stage.launch_forward(step(2)).sample([None]).collect() == []
    assert own.notes == ["forward 1", "forward 2"]
    stage.launch(Step(()))
    assert own.notes[2:] == ["launch 0"], "moves alone"


def test_a_token_that_it_cannot_know_ends_it() -> None:
    stage, known = EarlierStageRunner(Own(), CPU), row()
    stage.launch(Step((known,)))
    with pytest.raises(RuntimeError, match="pending"):
        stage.launch(Step((known, structs.replace(known, is_pending=True))))
