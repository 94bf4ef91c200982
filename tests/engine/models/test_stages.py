"""Layers are divided between stages by their cost, and a divided model gives the same bits."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.models.checkpoints.weights import load_parameters
from engine.models.config import ModelConfig, kv_layout
from engine.models.errors import UnsupportedModel
from engine.models.forward.build_decoder import build_decoder
from engine.models.parameters import dummy_parameters
from engine.models.served.reading import read_model_config
from engine.models.served.registry import SERVED
from engine.models.stages import split_layers, split_model
from engine.offload.host_layers import HostLayers
from engine.offload.placement import Placement
from engine.offload.prefetch import prefetch_of
from engine.startup.decoder import weight_sizes
from engine.startup.memory.activation import largest_batch
from kernels.ops import torch_ops
from storage.layouts.stage import Stage
from storage.pools.device_pool import DevicePool
from tests.doubles.models.alternating_architecture import SERVED as ALTERNATING
from tests.doubles.models.alternating_architecture import make_alternating_checkpoint
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.checkpoints import DIVISIBLE, RECURRENT

CPU = torch.device("cpu")
NUM_TOKENS = 40
OUTPUTS = torch.tensor([3, 39])

# For each architecture, a model with its special features: biases, tied tables, windows, sandwich
# norms, or a mixture beside a dense layer.
DIVIDED = {**DIVISIBLE, "MistralForCausalLM": "mistral-window"}


@dataclass(frozen=True)
class QueuePipe:
    """A pipe between stages that one thread computes in turn."""

    stage: Stage
    under_way: deque[Tensor]

    def receive(self, into: Tensor) -> Tensor:
        return into.copy_(self.under_way.popleft())

    def send(self, x: Tensor) -> None:
        self.under_way.append(x.clone())


@torch.inference_mode()
def logits(
    model_dir: Path, model: ModelConfig, ends: tuple[int, ...], *, in_host: bool = False
) -> Tensor:
    """Return the logits of two tokens of a prompt, computed by stages that end at layers `ends`.

    With `in_host` all layers of each stage stay in host memory.
    """
    under_way: deque[Tensor] = deque()
    batch = largest_batch(NUM_TOKENS, 64, 16, CPU)
    ids = torch.arange(NUM_TOKENS) * 7 % model.vocab_size
    for index in range(len(ends)):
        pipe = QueuePipe(Stage(index, ends), under_way)
        homes = in_host_memory(model, pipe.stage) if in_host else None
        parameters = load_parameters(
            model_dir, model, torch.float32, CPU, homes=homes, stage=pipe.stage
        )
        positions = model.max_positions
        decoder = build_decoder(model, parameters, torch_ops(), positions, pipe=pipe)
        decoder = replace(decoder, prefetch=None if homes is None else prefetch_of(homes))
        layout = kv_layout(model.layers, "float32", 16).stage_of(pipe.stage)
        pool = DevicePool(layout, 4, CPU)
        found = decoder.logits(ids, batch.layout, pool.layers, OUTPUTS)
        assert pool.tensor.any(dim=1).sum() == 3, "40 tokens are in three blocks, on every stage"
        assert len(found) == (2 if pipe.stage.is_last else 0)
    assert not under_way
    return found


def in_host_memory(model: ModelConfig, stage: Stage) -> HostLayers:
    sizes = weight_sizes(model, torch.float32, stage=stage).layers
    assert len(sizes) == len(stage.layers)
    return HostLayers(Placement(tuple(range(len(sizes))), sum(sizes), max(sizes)), sizes, CPU)


def test_every_architecture_that_is_served_is_divided_below() -> None:
    assert SERVED.architectures.keys() == DIVIDED.keys() | RECURRENT.keys()


@pytest.mark.parametrize("name", sorted({*DIVIDED.values()} - {"gemma4-shared"}))
def test_stages_compute_the_very_bits_of_the_whole(checkpoint: MakeCheckpoint, name: str) -> None:
    model_dir = checkpoint(name).model_dir
    model = read_model_config(model_dir)
    num_layers = len(model.layers)
    expected = logits(model_dir, model, (num_layers,))
    assert torch.equal(logits(model_dir, model, (1, num_layers)), expected)
    ends = tuple(range(1, num_layers + 1))
    assert torch.equal(logits(model_dir, model, ends), expected)


@pytest.mark.parametrize(
    ("name", "lacks"), [("nemotron-h", "attention"), ("granite-hybrid", "attention")]
)
def test_a_stage_without_a_kind_of_memory_is_refused(
    checkpoint: MakeCheckpoint, name: str, lacks: str
) -> None:
    assert split_model(read_model_config(checkpoint("qwen3.5").model_dir), 2, "float32") == (3, 5)
    with pytest.raises(UnsupportedModel, match=f"pipeline_parallel 2: stage . has no .*{lacks}"):
        split_model(read_model_config(checkpoint(name).model_dir), 2, "float32")


def test_of_layers_that_are_unlike(tmp_path: Path) -> None:
    """Divide layers that differ from each other between two stages, at every possible position."""
    make_alternating_checkpoint(tmp_path)
    model = read_model_config(tmp_path, ALTERNATING)
    expected = logits(tmp_path, model, (6,))
    for end in range(1, 6):
        assert torch.equal(logits(tmp_path, model, (end, 6)), expected)
    assert torch.equal(logits(tmp_path, model, (3, 6), in_host=True), expected)


def test_a_stage_has_its_own_layers_and_tables_alone(checkpoint: MakeCheckpoint) -> None:
    model_dir = checkpoint("llama").model_dir
    model = read_model_config(model_dir)
    first, middle, last = (
        load_parameters(model_dir, model, torch.float32, CPU, stage=Stage(index, (1, 2, 3)))
        for index in range(3)
    )
    assert [len(one.embedding) for one in (first, middle, last)] == [300, 0, 0]
    assert [len(one.head) for one in (first, middle, last)] == [0, 0, 300]
    assert [[layer.index for layer in one.layers] for one in (first, middle, last)] == [
        [0],
        [1],
        [2],
    ]
    tied = checkpoint("qwen3").model_dir
    ends = [
        load_parameters(tied, read_model_config(tied), torch.float32, CPU, stage=Stage(i, (1, 3)))
        for i in range(2)
    ]
    assert torch.equal(ends[0].embedding, ends[1].head), "both have the table that is tied"


def test_dummy_tables_that_are_tied_are_the_same_on_both_ends(checkpoint: MakeCheckpoint) -> None:
    model = read_model_config(checkpoint("qwen3").model_dir)
    first, last = (
        dummy_parameters(model, torch.float32, CPU, 0, stage=Stage(i, (1, 3))) for i in range(2)
    )
    assert torch.equal(first.embedding, last.head)
    assert first.embedding.any(), "the control"


class TestSplit:
    def test_layers_alike_and_a_head_that_costs_as_much_as_two(self) -> None:
        assert split_layers([10] * 8, 0, 2) == (4, 8)
        assert split_layers([10] * 8, 20, 2) == (5, 8)
        assert split_layers([10] * 8, 1000, 2) == (7, 8)
        assert split_layers([10] * 3, 10, 3) == (1, 2, 3)
        assert split_layers([10] * 8, 0, 8) == tuple(range(1, 9))
        assert split_layers([10] * 3, 5, 1) == (3,)

    def test_none_is_cheaper(self) -> None:
        costs, head = [3, 9, 1, 1, 7, 2, 2, 5, 4], 6
        for stages in (2, 3, 4):
            found = split_layers(costs, head, stages)
            inner = combinations(range(1, len(costs)), stages - 1)
            best = min(dearest(costs, head, (*ends, len(costs))) for ends in inner)
            assert dearest(costs, head, found) == best

    def test_refuses_more_stages_than_layers(self) -> None:
        with pytest.raises(
            UnsupportedModel, match=r"^pipeline_parallel 4: the model has 3 layers$"
        ):
            split_layers([1, 1, 1], 1, 4)

    def test_weights_count_as_they_are_kept(self, checkpoint: MakeCheckpoint) -> None:
        """Count the bytes of weights in their format: a large output table moves layers to earlier
        stages.
        """
        model = read_model_config(checkpoint("llama").model_dir)
        model = replace(model, layers=model.layers * 3)
        assert split_model(replace(model, vocab_size=1), 2, "float32") == (5, 9)
        assert split_model(replace(model, vocab_size=10_000), 2, "float32") == (8, 9)
        assert split_model(model, 1, "float32") == (9,)


def dearest(costs: list[int], head: int, ends: tuple[int, ...]) -> int:
    stages = [sum(costs[first:end]) for first, end in pairwise((0, *ends))]
    stages[-1] += head
    return max(stages)
