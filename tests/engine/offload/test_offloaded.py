"""Layers kept in host memory give the same results as on the device, bit for bit."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.models.checkpoints.weights import load_parameters
from engine.models.config import ModelConfig
from engine.models.parameters import dummy_parameters, empty_parameters
from engine.models.served.reading import read_model_config
from engine.models.served.registry import SERVED
from engine.models.weight_formats.fp8_checkpoints import ONLINE_FP8
from engine.offload.host_layers import HostLayers
from engine.offload.prefetch import LayerPrefetch, PlainLayerCopies
from engine.startup.decoder import weight_sizes
from tests.doubles.models.alternating_architecture import SERVED as ALTERNATING
from tests.doubles.models.alternating_architecture import make_alternating_checkpoint
from tests.engine.conftest import MakeCheckpoint
from tests.engine.models.weight_formats.test_mxfp4 import in_mxfp4
from tests.engine.rigs.checkpoints import DIVISIBLE, RECIPES, RECURRENT, Recipe, make_checkpoint
from tests.engine.rigs.files.int4_checkpoints import KINDS, make_int4
from tests.engine.rigs.offloading import (
    CPU,
    LateCopies,
    host_layers,
    logits,
    logits_from_device,
    logits_from_host,
)
from tests.engine.rigs.ranks import on_ranks

LAYERS = 7


class NoCopies(PlainLayerCopies):
    """A prefetch that copies nothing."""

    def start(self, *what: object) -> None:
        pass


class Hasty(LayerPrefetch):
    """A prefetch that counts a layer as computed too early."""

    def wait(self, index: int) -> None:
        super().wait(index)
        super().computed(index)

    def computed(self, index: int) -> None:
        pass


def expect_alike(model_dir: Path, model: ModelConfig) -> None:
    """Compare results when copies end at once, and when they end as late as possible."""
    wanted = logits_from_device(model_dir, model)
    assert torch.equal(logits_from_host(model_dir, model), wanted)
    copies = LateCopies()
    late = logits_from_host(model_dir, model, prefetch=lambda one: LayerPrefetch(one, copies))
    assert torch.equal(late, wanted)
    assert not copies.started, "a captured stream is joined: a step waits for all that it began"


def test_every_architecture_that_is_served_is_below() -> None:
    assert SERVED.architectures.keys() == DIVISIBLE.keys() | RECURRENT.keys()


@pytest.mark.parametrize("name", sorted({*DIVISIBLE.values(), *RECURRENT.values()}))
def test_of_every_architecture(checkpoint: MakeCheckpoint, name: str) -> None:
    model_dir = checkpoint(name).model_dir
    expect_alike(model_dir, read_model_config(model_dir))


@pytest.mark.parametrize("name", ["qwen3", "mixtral"])
def test_in_fp8_quantised_as_it_is_loaded(checkpoint: MakeCheckpoint, name: str) -> None:
    model_dir = checkpoint(name).model_dir
    expect_alike(model_dir, replace(read_model_config(model_dir), weight_format=ONLINE_FP8))


@pytest.mark.parametrize("kind", ["awq", "packed-asym"])
def test_in_int4(tmp_path: Path, kind: str) -> None:
    model_dir = make_int4(KINDS[kind], tmp_path).int4.model_dir
    expect_alike(model_dir, read_model_config(model_dir))


def test_in_mxfp4(tmp_path: Path) -> None:
    sizes = {**RECIPES["gpt-oss"].fields, "hidden_size": 64, "intermediate_size": 64}
    plain = make_checkpoint(Recipe("GptOss", sizes), tmp_path / "plain")
    model_dir = in_mxfp4(plain, tmp_path / "mxfp4").model_dir
    expect_alike(model_dir, read_model_config(model_dir))


def test_of_layers_of_several_sizes(tmp_path: Path) -> None:
    make_alternating_checkpoint(tmp_path, num_layers=9)
    expect_alike(tmp_path, read_model_config(tmp_path, ALTERNATING))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("seven")
    return make_checkpoint(Recipe("Llama", {"num_hidden_layers": LAYERS}), directory).model_dir


class TestSevenLayers:
    @pytest.mark.parametrize("count", range(1, LAYERS + 1))
    def test_any_number_of_them_may_stay(self, model_dir: Path, count: int) -> None:
        model = read_model_config(model_dir)
        wanted = logits_from_device(model_dir, model)
        assert torch.equal(logits_from_host(model_dir, model, count), wanted)

    def test_the_control_without_copies_or_with_copies_too_early_it_is_another_model(
        self, model_dir: Path
    ) -> None:
        model = read_model_config(model_dir)
        wanted = logits_from_device(model_dir, model)
        for wrong in (
            lambda one: LayerPrefetch(one, NoCopies()),
            lambda one: Hasty(one, PlainLayerCopies()),
        ):
            found = logits_from_host(model_dir, model, prefetch=wrong)
            assert not torch.equal(found, wanted)

    def test_two_ranks_keep_their_own_parts(self, model_dir: Path) -> None:
        model = read_model_config(model_dir)
        wanted = on_ranks(2, lambda group: logits_from_device(model_dir, model, group))
        found = on_ranks(2, lambda group: logits_from_host(model_dir, model, 4, group))
        assert all(map(torch.equal, found, wanted))

    def test_dummy_weights_are_the_same(self, model_dir: Path) -> None:
        model = read_model_config(model_dir)
        wanted = dummy_parameters(model, torch.float32, CPU, 3)
        with closing(host_layers(model, 4)) as layers:
            made = dummy_parameters(model, torch.float32, CPU, 3, homes=layers)
            assert all(map(torch.equal, made.tensors(), wanted.tensors()))
            prefetch = LayerPrefetch(layers, PlainLayerCopies())
            assert torch.equal(logits(made, model, prefetch), logits(wanted, model))

    def test_the_device_holds_the_others_and_two_buffers(self, model_dir: Path) -> None:
        model = read_model_config(model_dir)
        whole = load_parameters(model_dir, model, torch.float32, CPU).num_bytes
        sizes = weight_sizes(model, torch.float32)
        with closing(host_layers(model, 5)) as layers:
            held = empty_parameters(model, torch.float32, CPU, homes=layers).num_bytes
        assert whole - held == pytest.approx(3 * sizes.layers[0], rel=0.02)
        assert held == pytest.approx(sizes.on_device(layers.placement), rel=0.02)
        assert sum(sizes.layers) + sizes.others == pytest.approx(whole, rel=0.02)


def test_memory_that_is_given_back_is_not_used(checkpoint: MakeCheckpoint) -> None:
    layers: HostLayers = host_layers(read_model_config(checkpoint("llama").model_dir))
    assert layers.host(0) is not None
    layers.close()
    layers.close()
    assert layers.host(0) is None
