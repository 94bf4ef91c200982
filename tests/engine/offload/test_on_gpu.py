"""Weights in host memory give the same bits on a CUDA device, in eager steps and in graphs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.execution.graphs.capture import cuda_capture
from engine.execution.graphs.runner import GraphRunner
from engine.execution.runner import ModelRunner
from engine.models.checkpoints.weights import load_parameters
from engine.models.config import ModelConfig
from engine.models.served.reading import read_model_config
from engine.models.weight_formats.fp8_checkpoints import ONLINE_FP8
from engine.offload.host_layers import HostLayers
from engine.offload.prefetch import LayerPrefetch, StreamLayerCopies, prefetch_of
from engine.step import Runner
from tests.engine.conftest import MakeCheckpoint
from tests.engine.offload.test_start import config_of, generated, opened
from tests.engine.offload.test_start import offloaded as from_host
from tests.engine.rigs.checkpoints import Recipe, make_checkpoint
from tests.engine.rigs.hand_driven import (
    HandDriven,
    build_runner,
    output,
    random_prompt,
    sampling,
    with_graphs,
)
from tests.engine.rigs.offloading import host_layers, logits

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")


@pytest.mark.parametrize("name", ["llama-biases", "gemma3", "qwen3-moe", "gpt-oss"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eager_steps_have_the_same_bits(
    checkpoint: MakeCheckpoint, name: str, dtype: torch.dtype
) -> None:
    model_dir = checkpoint(name).model_dir
    expect_alike(model_dir, read_model_config(model_dir), dtype)


def test_so_have_products_in_fp8(checkpoint: MakeCheckpoint) -> None:
    model_dir = checkpoint("qwen3").model_dir
    model = replace(read_model_config(model_dir), weight_format=ONLINE_FP8)
    expect_alike(model_dir, model, torch.bfloat16)


def expect_alike(model_dir: Path, model: ModelConfig, dtype: torch.dtype) -> None:
    wanted = logits(load_parameters(model_dir, model, dtype, CUDA), model)
    with closing(host_layers(model, device=CUDA, dtype=dtype)) as layers:
        parameters = load_parameters(model_dir, model, dtype, CUDA, homes=layers)
        assert torch.equal(logits(parameters, model, prefetch_of(layers)), wanted)


@pytest.mark.parametrize("load_format", ["safetensors", "dummy"])
def test_an_engine_that_is_started_has_the_same_tokens(
    checkpoint: MakeCheckpoint, load_format: str
) -> None:
    """The engine measures, warms up and captures with weights in host memory."""
    settings = {"device": "cuda", "cache_tokens": None, "load_format": load_format}
    tokens = []
    for config in (config_of, from_host):
        with closing(opened(config(checkpoint, **settings))) as part:
            tokens.append(generated(part))
    assert tokens[0] == tokens[1]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model of seven layers, so wide that a copy takes longer than computing before it."""
    sizes = {"num_hidden_layers": 7, "hidden_size": 1024, "intermediate_size": 4096}
    directory = tmp_path_factory.mktemp("wide")
    return make_checkpoint(Recipe("Llama", {**sizes, "head_dim": 64}), directory).model_dir


class Unawaited(StreamLayerCopies):
    """Copies whose ends no step awaits."""

    def wait(self, index: int) -> None:
        pass


def test_steps_wait_for_copies_that_take_longer_than_they_do(wide: Path) -> None:
    """Wait in each step for copies that take longer than the step.

    In each of many steps the buffers at first contain the weights of other layers.
    """
    model = read_model_config(wide)
    wanted = logits(load_parameters(wide, model, torch.bfloat16, CUDA), model)
    with closing(host_layers(model, 5, device=CUDA, dtype=torch.bfloat16)) as layers:
        parameters = load_parameters(wide, model, torch.bfloat16, CUDA, homes=layers)
        prefetch = prefetch_of(layers)
        for _ in range(20):
            assert torch.equal(logits(parameters, model, prefetch), wanted)
        hurried = LayerPrefetch(layers, Unawaited(CUDA))
        assert not torch.equal(logits(parameters, model, hurried), wanted), "the control"


def offloaded(runner: ModelRunner, model_dir: Path, layers: HostLayers) -> ModelRunner:
    model = runner.decoder.config
    parameters = load_parameters(model_dir, model, torch.bfloat16, CUDA, homes=layers)
    decoder = replace(runner.decoder, parameters=parameters, prefetch=prefetch_of(layers))
    return replace(runner, decoder=decoder)


def captured(runner: ModelRunner) -> GraphRunner:
    """Return the same runner, with steps of up to 64 tokens in graphs."""
    with cuda_capture() as capture:
        return with_graphs(runner, capture, max_tokens=64)


def served(eager: ModelRunner, launcher: Runner) -> list[list[int]]:
    """Compute prompts one after the other, then many decodes together."""
    driven = HandDriven(eager, launcher)
    sequences = [driven.add(random_prompt(30 + n, seed=n), sampling(40)) for n in range(4)]
    for one in sequences:
        driven.step((one, one.num_tokens))
    for _ in range(39):
        driven.step(*((one, 1) for one in sequences))
    return [output(one) for one in sequences]


def test_graphs_capture_the_copies_and_eager_steps_may_follow(wide: Path) -> None:
    """Graphs are compared with graphs: padding changes the rows, and so the rounding of GEMMs."""
    resident = build_runner(wide, device=CUDA, dtype=torch.bfloat16)
    in_graphs, eagerly = served(resident, captured(resident)), served(resident, resident)
    with closing(
        host_layers(resident.decoder.config, 5, device=CUDA, dtype=torch.bfloat16)
    ) as kept:
        runner = offloaded(resident, wide, kept)
        graphs = captured(runner)
        for _ in range(3):
            assert served(runner, graphs) == in_graphs
            assert served(runner, runner) == eagerly
        graphs.steps.drop()
