"""The trial before a recording: it runs fewer layers, but calls every kernel that the recording
calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.execution.graphs.capture import Launches
from engine.models.served.registry import ServedModels
from kernels.linear import linear
from kernels.ops import Ops
from tests.doubles.engine.device.rerun import Rerun, RerunCaptured
from tests.doubles.models import alternating_architecture, odd_architecture
from tests.doubles.models.alternating_architecture import make_alternating_checkpoint
from tests.doubles.models.odd_architecture import make_odd_checkpoint
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.hand_driven import build_runner, with_graphs

WHOLE_LAYERS = 3  # number of layers of the checkpoints
UNLIKE_LAYERS = 2  # number of layers of a trial, enough since all layers are alike
INTERMEDIATE = 80


@dataclass
class NotedOp:
    """An op that records all arguments that a kernel may be specialised for."""

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
    if is_dataclass(argument):
        return tuple(described(getattr(argument, one.name)) for one in fields(argument))
    return argument


def in_parts(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute a split-K product as on a GPU; the product's shape determines the number of
    splits.
    """
    product = linear.reference(x, weight, bias).float()
    num_parts = 4 if weight.shape[1] == INTERMEDIATE else 2
    return torch.stack([product / num_parts] * num_parts)


def noted(ops: Ops, calls: Counter[tuple[Any, ...]]) -> Ops:
    ops = replace(ops, linear_split_k=in_parts)
    # the field of a step's adapters is no op
    names = [one.name for one in fields(ops) if one.name != "adapters"]
    every: dict[str, Any] = {name: NotedOp(name, getattr(ops, name), calls) for name in names}
    return replace(ops, **every)


@dataclass
class CallsOfBoth:
    """A `Capture` that counts the ops that each trial and each recording called."""

    calls: Counter[tuple[Any, ...]]
    pairs: list[tuple[Counter[Any], Counter[Any]]] = field(default_factory=list)
    rerun: Rerun = field(default_factory=Rerun)

    def record(self, trial: Launches, launches: Launches) -> RerunCaptured:
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
    capture = CallsOfBoth(Counter())
    ops = noted(runner.decoder.ops, capture.calls)
    runner = replace(runner, decoder=replace(runner.decoder, ops=ops))
    with_graphs(runner, capture, max_tokens=64)
    assert len(capture.pairs) == capture.rerun.captured > 10
    for tried, captured in capture.pairs:
        assert set(tried) == set(captured)
        assert times(tried, "paged_attention") == UNLIKE_LAYERS
        assert times(captured, "paged_attention") == WHOLE_LAYERS


@pytest.mark.parametrize(
    ("make", "served", "layers", "kept"),
    [
        (make_odd_checkpoint, odd_architecture.SERVED, 14, 8),
        (make_alternating_checkpoint, alternating_architecture.SERVED, 9, 5),
    ],
)
def test_a_trial_of_unlike_layers_calls_every_op_as_the_recording_does(
    tmp_path: Path, make: Callable[..., object], served: ServedModels, layers: int, kept: int
) -> None:
    make(tmp_path, num_layers=layers)
    runner = build_runner(tmp_path, served=served)
    capture = CallsOfBoth(Counter())
    ops = noted(runner.decoder.ops, capture.calls)
    runner = replace(runner, decoder=replace(runner.decoder, ops=ops))
    with_graphs(runner, capture, max_tokens=64)
    assert len(capture.pairs) == capture.rerun.captured > 10
    for tried, captured in capture.pairs:
        assert set(tried) == set(captured)
        assert times(tried, "paged_attention") == kept
        assert times(captured, "paged_attention") == layers


@pytest.mark.parametrize("name", ["qwen3-next", "qwen3.5"])
def test_a_trial_of_recurrent_layers_calls_every_op_as_the_recording_does(
    checkpoint: MakeCheckpoint, name: str
) -> None:
    runner = build_runner(checkpoint(name).model_dir)
    capture = CallsOfBoth(Counter())
    ops = noted(runner.decoder.ops, capture.calls)
    runner = replace(runner, decoder=replace(runner.decoder, ops=ops))
    with_graphs(runner, capture, max_tokens=64)
    assert len(capture.pairs) == capture.rerun.captured > 10
    for tried, captured in capture.pairs:
        assert set(tried) == set(captured)
        assert times(captured, "gated_delta") == 3
        assert times(captured, "paged_attention") == 2


def times(calls: Counter[Any], op: str) -> int:
    return sum(count for (name, *_), count in calls.items() if name == op)


def test_a_trial_of_one_layer_would_miss_calls_of_the_recording(checkpoint: MakeCheckpoint) -> None:
    """Miss calls with a trial of one layer (positive control).

    The norm between layers reads the split output of another GEMM than the norm within a layer.
    """
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
