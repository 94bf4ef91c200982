"""The start of an engine with weights in host memory, and reasons why it fails."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.execution.graphs.runner import GraphRunner
from engine.execution.runner import ModelRunner
from engine.models.errors import NotEnoughMemory, WrongSetting
from engine.offload.host_layers import HostLayers
from engine.offload.placement import GIB, place
from engine.startup.decoder import WeightSizes, check_room, weight_sizes
from engine.startup.loading import OpenedPart, open_part
from engine.startup.metadata import read_metadata
from storage.pools import host_pool
from tests.doubles.engine.device.rerun import Rerun
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.hand_driven import (
    EVERY_WISH,
    HandDriven,
    output,
    random_prompt,
    sampling,
    with_graphs,
)

NAME = "gemma3"  # a model of four layers, so that two can be freed


def config_of(checkpoint: MakeCheckpoint, **settings: Any) -> EngineConfig:
    fields = {"socket": "", "device": "cpu", "cache_tokens": 1024, **settings}
    return EngineConfig.of(model_dir=str(checkpoint(NAME).model_dir), **fields)


def offloaded(checkpoint: MakeCheckpoint, **settings: Any) -> EngineConfig:
    """Make an engine with all layers in host memory."""
    config = config_of(checkpoint, **settings)
    metadata = read_metadata(config)
    total = sum(weight_sizes(metadata.model, metadata.dtype).layers)
    return config_of(checkpoint, cpu_offload_gb=0.9 * total / GIB, **settings)


def opened(config: EngineConfig) -> OpenedPart:
    return open_part(config, read_metadata(config))


def runner_of(part: OpenedPart) -> ModelRunner:
    assert isinstance(part.runner, ModelRunner)
    return part.runner


def generated(part: OpenedPart) -> list[list[int]]:
    """Compute prompts one after the other, then decode them together; return the tokens."""
    runner = part.runner
    graphs = runner if isinstance(runner, GraphRunner) else None
    driven = HandDriven(runner_of(part) if graphs is None else graphs.eager, graphs)
    sequences = [
        driven.add(random_prompt(20 + n, seed=n), sampling(6, 0.7, seed=n)) for n in range(3)
    ]
    for one in sequences:
        driven.step((one, one.num_tokens))
    for _ in range(5):
        driven.step(*((one, 1) for one in sequences))
    return [output(one) for one in sequences]


@pytest.mark.parametrize("load_format", ["safetensors", "dummy"])
def test_tokens_and_fingerprint_are_those_of_weights_on_the_device(
    checkpoint: MakeCheckpoint, load_format: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain = opened(config_of(checkpoint, load_format=load_format))
    with caplog.at_level(logging.INFO):
        part = opened(offloaded(checkpoint, load_format=load_format))
    with closing(part):
        assert generated(part) == generated(plain)
        assert part.fingerprint == plain.fingerprint, "so blocks on disk serve both"
        assert runner_of(part).decoder.prefetch is not None
    assert runner_of(plain).decoder.prefetch is None
    [line] = [one for one in caplog.messages if "host memory" in one]
    assert line.startswith("weights in host memory: 4 of 4 layers, 0.000")
    assert "GiB, which every step copies to the device" in line


def test_replayed_steps_copy_as_eager_ones_do(checkpoint: MakeCheckpoint) -> None:
    """Here a replay runs all captured work again, including copies. Some steps are eager."""
    with closing(opened(offloaded(checkpoint))) as part:
        eager = runner_of(part)
        tokens = []
        for launcher in (eager, with_graphs(eager, Rerun(), max_tokens=8)):
            driven = HandDriven(eager, launcher)
            sequences = [
                driven.add(random_prompt(9 + 3 * n, seed=n), wish)
                for n, wish in enumerate(EVERY_WISH[1:3])
            ]
            for one in sequences:
                driven.step((one, one.num_tokens))
            for _ in range(7):
                driven.step(*((one, 1) for one in sequences))
            tokens.append([output(one) for one in sequences])
        assert tokens[0] == tokens[1]


@pytest.mark.parametrize(
    ("gib", "says"),
    [(1.0, "cpu_offload_gb 1: the layers have 0.0"), (1e-9, "in host memory free none; 0.0")],
)
def test_a_number_that_cannot_be_is_refused_with_those_that_can(
    checkpoint: MakeCheckpoint, gib: float, says: str
) -> None:
    with pytest.raises(WrongSetting, match=says):
        opened(config_of(checkpoint, cpu_offload_gb=gib))


def test_too_little_host_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = place([1 << 20] * 4, 4 / 1024)
    monkeypatch.setattr(host_pool, "host_free_bytes", lambda: 3 << 20)
    with pytest.raises(NotEnoughMemory, match=r"^cpu_offload_gb: 0.00 GiB of weights do not fit"):
        HostLayers(placement, [1 << 20] * 4, torch.device("cpu"))
    monkeypatch.setattr(host_pool, "host_free_bytes", lambda: 4 << 20)
    HostLayers(placement, [1 << 20] * 4, torch.device("cpu")).close()


class TestRoom:
    """Tests of the room on a device of 24 GiB for 40 layers of 1 GiB and 2 GiB of tables."""

    CONFIG = EngineConfig.of(model_dir="", socket="")
    SIZES = WeightSizes((GIB,) * 40, 2 * GIB)

    def test_weights_that_do_not_fit_are_told_what_to_keep_in_host_memory(self) -> None:
        with pytest.raises(NotEnoughMemory) as refused:
            check_room(self.CONFIG, self.SIZES, None, 24 * GIB)
        assert str(refused.value) == (
            "the weights take 42.0 GiB of the device, of which 24.0 are free: "
            "cpu_offload_gb 24.98 would keep enough of them in host memory"
        )

    def test_with_that_they_fit(self) -> None:
        placement = place(self.SIZES.layers, 24.98)
        assert self.SIZES.on_device(placement) == (42 - 25 + 2) * GIB
        check_room(self.CONFIG, self.SIZES, placement, 24 * GIB)

    def test_too_few_in_host_memory_are_refused_as_well(self) -> None:
        placement = place(self.SIZES.layers, 10)
        with pytest.raises(NotEnoughMemory, match=r"take 34.0 GiB .* cpu_offload_gb 24.98 would"):
            check_room(self.CONFIG, self.SIZES, placement, 24 * GIB)

    def test_a_device_without_room_for_two_layers_and_the_tables_cannot(self) -> None:
        with pytest.raises(NotEnoughMemory, match="no cpu_offload_gb would make them fit"):
            check_room(self.CONFIG, self.SIZES, None, 4 * GIB)
        with pytest.raises(NotEnoughMemory, match=r"cpu_offload_gb 39\.98 would keep enough"):
            check_room(self.CONFIG, self.SIZES, None, int(4.5 * GIB))
        check_room(self.CONFIG, replace(self.SIZES, layers=(GIB,)), None, 4 * GIB)
