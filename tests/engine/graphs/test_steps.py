"""What is run before a recording: fewer layers, and yet every kernel of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.graphs.recorder import Launches
from engine.model.decoder import UNLIKE_LAYERS
from kernels import linear
from kernels.batch_layout import BatchLayout
from kernels.ops import Ops
from tests.doubles.rerun import Rerun, RerunRecorded
from tests.engine.conftest import MakeCheckpoint
from tests.engine.hand_driven import build_runner, with_graphs

WHOLE_LAYERS = 3  # of the checkpoints
INTERMEDIATE = 80


@dataclass
class NotedOp:
    """An op that notes how it is called: all that a kernel may be compiled for."""

    name: str
    op: Any
    calls: Counter[tuple[Any, ...]]

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        given = (*arguments, *keywords.values())
        self.calls[self.name, *(described(one) for one in given)] += 1
        return self.op(*arguments, **keywords)


def described(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.dtype, argument.shape, argument.stride()
    if isinstance(argument, BatchLayout):
        return tuple(described(getattr(argument, one.name)) for one in fields(argument))
    return argument


def in_parts(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """As on a GPU, where the number of parts depends on the product's shape, and kernels on it."""
    product = linear.reference(x, weight, bias).float()
    num_parts = 4 if weight.shape[1] == INTERMEDIATE else 2
    return torch.stack([product / num_parts] * num_parts)


def noted(ops: Ops, calls: Counter[tuple[Any, ...]]) -> Ops:
    ops = replace(ops, linear_in_parts=in_parts)
    return replace(
        ops, **{one.name: NotedOp(one.name, getattr(ops, one.name), calls) for one in fields(ops)}
    )


@dataclass
class CallsOfBoth:
    """A `Recorder` that keeps which ops each trial and each recording called, and how often."""

    calls: Counter[tuple[Any, ...]]
    pairs: list[tuple[Counter[Any], Counter[Any]]] = field(default_factory=list)
    rerun: Rerun = field(default_factory=Rerun)

    def record(self, trial: Launches, launches: Launches) -> RerunRecorded:
        self.calls.clear()
        trial()
        tried = self.calls.copy()
        self.calls.clear()
        launches()
        self.pairs.append((tried, self.calls.copy()))
        return self.rerun.record(trial, launches)


@pytest.mark.parametrize("name", ["llama3-rope", "qwen2", "qwen3-biases"])
def test_a_trial_calls_every_op_as_the_recording_does_but_for_two_layers(
    checkpoint: MakeCheckpoint, name: str
) -> None:
    runner = build_runner(checkpoint(name).model_dir)
    recorder = CallsOfBoth(Counter())
    ops = noted(runner.decoder.ops, recorder.calls)
    runner = replace(runner, decoder=replace(runner.decoder, ops=ops))
    with_graphs(runner, recorder, max_tokens=64)
    assert len(recorder.pairs) == recorder.rerun.recorded > 10
    for tried, recorded in recorder.pairs:
        assert set(tried) == set(recorded)
        assert times(tried, "paged_attention") == UNLIKE_LAYERS
        assert times(recorded, "paged_attention") == WHOLE_LAYERS


def times(calls: Counter[Any], op: str) -> int:
    return sum(count for (name, *_), count in calls.items() if name == op)


def test_one_layer_would_not_do(checkpoint: MakeCheckpoint) -> None:
    """The control: the norm between layers reads parts of another product than the one within."""
    runner = build_runner(checkpoint("llama").model_dir)
    calls: Counter[tuple[Any, ...]] = Counter()
    parameters = runner.decoder.parameters
    sets = []
    for num_layers in (1, UNLIKE_LAYERS, WHOLE_LAYERS):
        few = replace(parameters, layers=parameters.layers[:num_layers])
        decoder = replace(runner.decoder, ops=noted(runner.decoder.ops, calls), parameters=few)
        with_graphs(replace(runner, decoder=decoder), Rerun(), max_tokens=64)
        sets.append(set(calls))
        calls.clear()
    assert sets[0] < sets[1] == sets[2]


def test_trials_leave_the_decoder_whole(checkpoint: MakeCheckpoint) -> None:
    runner = build_runner(checkpoint("llama").model_dir)
    before = [tensor.clone() for tensor in runner.decoder.parameters.tensors()]
    graphs = with_graphs(runner, Rerun(), max_tokens=1)
    assert len(graphs.eager.decoder.parameters.layers) == WHOLE_LAYERS
    after = graphs.eager.decoder.parameters.tensors()
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
