"""Unusable scales, such as NaN, stop the start in every format; the error names them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.models.checkpoints.weights import load_parameters
from engine.models.errors import CheckpointError
from engine.models.served.reading import read_model_config
from engine.models.weight_formats.scales import ScaleChecks
from tests.engine.models.weight_formats import test_fp8 as fp8
from tests.engine.models.weight_formats import test_fp8_experts as fp8_experts
from tests.engine.models.weight_formats.test_int4_experts import recipe
from tests.engine.rigs.files.int4_checkpoints import KINDS, make_int4, rewrite

Spoil = Callable[[Tensor], Tensor]
LAYER = "model.layers.0."
MATRIX, EXPERT = f"{LAYER}mlp.up_proj.", f"{LAYER}mlp.experts.1.up_proj."
# Each entry is a weight format, and a tensor of scales in its files.
SCALES = [
    ("channel", f"{MATRIX}weight_scale"),
    ("tensor-static", f"{MATRIX}weight_scale"),
    ("block", f"{MATRIX}weight_scale_inv"),
    ("experts channel", f"{EXPERT}weight_scale"),
    ("experts block", f"{EXPERT}weight_scale_inv"),
    ("awq", f"{MATRIX}scales"),
    ("gptq", f"{MATRIX}scales"),
    ("packed", f"{MATRIX}weight_scale"),
    ("experts awq", f"{EXPERT}scales"),
]


def with_one(value: Tensor, number: float) -> Tensor:
    """Return the tensor with its first number replaced."""
    changed = value.clone()
    changed.view(-1)[0] = number
    return changed


SPOILT: list[tuple[Spoil, str]] = [
    (lambda one: with_one(one, float("nan")), "a scale is not finite"),
    (lambda one: with_one(one, float("-inf")), "a scale is not finite"),
    (torch.zeros_like, "all scales are 0"),
]
INPUTS: list[tuple[Spoil, str]] = [
    (lambda one: one * float("nan"), "it is nan: served is a finite number above 0"),
    (lambda one: one / 0, "it is inf: served"),
    (torch.zeros_like, "it is 0: served"),
    (lambda one: -one, "it is -.*: served"),
    (lambda one: one.reshape(1).repeat(3), r"it is \(3,\): served is one number"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make the checkpoint of a format once. It must not be changed."""

    @cache
    def make(kind: str) -> Path:
        directory, dense = tmp_path_factory.mktemp("scales"), kind.removeprefix("experts ")
        is_dense = kind == dense
        if dense in KINDS:
            int4 = make_int4(KINDS[dense], directory, None if is_dense else recipe())
            return int4.int4.model_dir
        make_fp8 = fp8.make_quantised if is_dense else fp8_experts.make_mixture
        return make_fp8(fp8.KINDS[dense], directory / "model").model_dir

    return make


def load(model_dir: Path) -> None:
    load_parameters(model_dir, read_model_config(model_dir), torch.float32, torch.device("cpu"))


def spoilt(model_dir: Path, target: Path, name: str, spoil: Spoil) -> Path:
    """Copy a checkpoint, with one tensor replaced."""
    copy = Path(shutil.copytree(model_dir, target))
    tensors = dict(load_file(model_dir / "model.safetensors"))
    rewrite(copy, {**tensors, name: spoil(tensors[name]).contiguous()})
    return copy


@pytest.mark.parametrize(("kind", "name"), SCALES)
def test_scales_that_are_none_are_named(
    made: Callable[[str], Path], tmp_path: Path, kind: str, name: str
) -> None:
    load(spoilt(made(kind), tmp_path / "halved", name, lambda one: one / 2))
    for number, (spoil, says) in enumerate(SPOILT):
        model_dir = spoilt(made(kind), tmp_path / str(number), name, spoil)
        with pytest.raises(CheckpointError, match=f"{name}: {says}"):
            load(model_dir)


@pytest.mark.parametrize("kind", ["channel", "block", "awq"])
def test_one_scale_of_several_may_be_zero(
    made: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    name = dict(SCALES)[kind]
    load(spoilt(made(kind), tmp_path / "one", name, lambda one: with_one(one, 0.0)))


def test_an_input_scale_that_is_none_is_named(made: Callable[[str], Path], tmp_path: Path) -> None:
    model_dir, name = made("tensor-static"), f"{MATRIX}input_scale"
    load(spoilt(model_dir, tmp_path / "halved", name, lambda one: one / 2))
    for number, (spoil, says) in enumerate(INPUTS):
        copy = spoilt(model_dir, tmp_path / str(number), name, spoil)
        with pytest.raises(CheckpointError, match=f"{name}: {says}"):
            load(copy)


def test_one_scale_is_not_taken_for_those_of_several_blocks(
    made: Callable[[str], Path], tmp_path: Path
) -> None:
    name = f"{MATRIX}weight_scale_inv"
    copy = spoilt(made("block"), tmp_path / "one", name, lambda one: one[:1])
    with pytest.raises(CheckpointError, match=rf"{name} is \(1, 1\), the config gives \(2, 1\)"):
        load(copy)


def test_scales_are_waited_for_once_however_many_there_are() -> None:
    """Wait once for all scales.

    The meta device has no values, so waiting for each one would fail.
    """
    checks = ScaleChecks()
    for number in range(3):
        checks.add(f"{number}.weight_scale", torch.ones(4, device="meta"))
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        checks.check()


def test_the_first_of_a_file_is_named_and_the_next_file_begins_anew() -> None:
    checks = ScaleChecks()
    checks.check()
    for name, number in {"a": 1.0, "b": 0.0, "c": float("nan")}.items():
        checks.add(name, torch.full((2,), number))
    with pytest.raises(CheckpointError, match="b: all scales are 0"):
        checks.check()
    checks.check()
