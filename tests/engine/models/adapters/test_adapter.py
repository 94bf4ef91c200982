"""The files of adapters: accepted forms, and refusals that name the field."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.models.adapters.adapter import Adapter, adapter_digest, read_adapter
from engine.models.adapters.adapter_files import read_adapter_files
from engine.models.adapters.errors import AdapterRefused
from engine.models.names import CheckpointNames
from tests.doubles.models.lora_files import IN, OUT, Q_PROJ, RANK, fitting, tensors, write_adapter

A, B = (f"base_model.model.{Q_PROJ}.lora_{name}.weight" for name in "AB")
MOST = 1 << 16


def read(folder: Path, most_rank: int = 8) -> Adapter:
    files = read_adapter_files(folder.parent, folder.name, MOST)
    return read_adapter(files, fitting(most_rank))


def test_an_adapter_is_read_with_its_scale(tmp_path: Path) -> None:
    adapter, own = read(write_adapter(tmp_path / "a")), tensors()
    a, b = adapter.matrices[Q_PROJ]
    assert torch.equal(a, own[A])
    assert torch.allclose(b, own[B] * 2.0)  # alpha 8 divided by rank 4
    assert adapter.num_bytes == 4 * RANK * (IN + OUT)
    stabilised = read(write_adapter(tmp_path / "b", config={"use_rslora": True}))
    assert torch.allclose(stabilised.matrices[Q_PROJ][1], own[B] * 4.0)


def test_whatever_changes_the_product_changes_the_digest(tmp_path: Path) -> None:
    changes: dict[str, dict[str, Any]] = {
        "x": {"lora_alpha": 9},
        "y": {"use_rslora": True},
        "z": {"alora_invocation_tokens": [1, 2]},
    }
    digests = {
        read(write_adapter(tmp_path / "one")).digest,
        read(write_adapter(tmp_path / "seed", seed=1)).digest,
        *(read(write_adapter(tmp_path / to, config=one)).digest for to, one in changes.items()),
    }
    assert len(digests) == 5
    again = read(write_adapter(tmp_path / "two", config={"lora_dropout": 0.5}))
    assert again.digest in digests  # a setting used only in training does not change the digest


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"peft_type": "IA3"}, "peft_type"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias"),
        ({"lora_bias": True}, "lora_bias"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"rank_pattern": {r".*\.gate_up_proj": 2, "q_proj": 2}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern"),
        ({"rank_pattern": {r".*\.gate_up_proj": 16}}, "adapter_rank"),
        ({"alora_invocation_tokens": []}, "alora_invocation_tokens"),
        ({"alora_invocation_tokens": [1] * 257}, "alora_invocation_tokens"),
        ({"alora_invocation_tokens": [-1]}, "alora_invocation_tokens"),
        ({"of_a_later_release": 1}, "of_a_later_release"),
        ({"r": 0}, "r or lora_alpha"),
        ({"r": "many"}, "r"),
        ({"r": 16}, "adapter_rank"),
        ({"r": 5}, "rank 5"),
    ],
)
def test_a_config_that_is_not_served_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], named: str
) -> None:
    read(write_adapter(tmp_path / "good"))
    with pytest.raises(AdapterRefused, match=named):
        read(write_adapter(tmp_path / "bad", config=config))


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({A: torch.zeros(RANK, IN + 1)}, "columns"),
        ({B: torch.zeros(OUT - 1, RANK)}, "rows"),
        ({A: torch.full((RANK, IN), float("nan"))}, "not finite"),
        ({A: torch.zeros(RANK, IN, dtype=torch.int8)}, "float32"),
        ({A.replace("q_proj", "o_proj"): torch.zeros(RANK, IN)}, "no lora_A or no lora_B"),
        ({A.replace("lora_A.weight", "lora_magnitude_vector"): torch.zeros(OUT)}, "magnitude"),
        ({"base_model.model.lm_head.weight": torch.zeros(2, 2)}, "lm_head"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, named: dict[str, torch.Tensor], said: str
) -> None:
    with pytest.raises(AdapterRefused, match=said):
        read(write_adapter(tmp_path / "bad", named=named))


def test_a_matrix_that_the_model_has_not_is_refused(tmp_path: Path) -> None:
    files = read_adapter_files(tmp_path, write_adapter(tmp_path / "a").name, MOST)
    with pytest.raises(AdapterRefused, match="q_proj"):
        read_adapter(files, replace(fitting(), shapes={"model.layers.1.q_proj": (OUT, IN)}))


def test_a_joined_matrix_is_divided_by_its_rows(tmp_path: Path) -> None:
    files = read_adapter_files(tmp_path, write_adapter(tmp_path / "a").name, MOST)
    names = CheckpointNames(merged=(("q_proj", ("one", "two")),))
    one, two = (Q_PROJ.replace("q_proj", name) for name in ("one", "two"))
    fits = replace(fitting(), shapes={one: (4, IN), two: (OUT - 4, IN)}, names=names)
    adapter = read_adapter(files, fits)
    assert torch.equal(adapter.matrices[one][0], adapter.matrices[two][0])
    joined = torch.cat((adapter.matrices[one][1], adapter.matrices[two][1]))
    assert torch.allclose(joined, tensors()[B] * 2.0)


def test_only_safetensors_of_a_bounded_size_are_read(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a")
    weights = folder / "adapter_model.safetensors"
    size = weights.stat().st_size
    read_adapter_files(tmp_path, "a", size)
    with pytest.raises(AdapterRefused, match="more than"):
        read_adapter_files(tmp_path, "a", size - 1)
    weights.write_bytes(b"no header")
    with pytest.raises(AdapterRefused, match="adapter_model"):
        read(folder)
    weights.rename(folder / "adapter_model.bin")
    with pytest.raises(AdapterRefused, match="cannot be read"):
        read(folder)


@pytest.mark.parametrize("path", ["", ".", "..", "../a", "a/..", "/a", "a//b", "a/", ".a", "a\0"])
def test_a_path_stays_below_the_folder(tmp_path: Path, path: str) -> None:
    write_adapter(tmp_path / "inside" / "a")
    write_adapter(tmp_path / "a")
    read_adapter_files(tmp_path / "inside", "a", MOST)
    with pytest.raises(AdapterRefused, match="below the folder"):
        read_adapter_files(tmp_path / "inside", path, MOST)


def test_no_link_is_followed(tmp_path: Path) -> None:
    outside, inside = write_adapter(tmp_path / "outside"), tmp_path / "inside"
    inside.mkdir()
    (inside / "linked").symlink_to(outside)
    (inside / "own").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (inside / "own" / name).symlink_to(outside / name)
    read_adapter_files(tmp_path, "outside", MOST)
    for path in ("linked", "own"):
        with pytest.raises(AdapterRefused, match="no link"):
            read_adapter_files(inside, path, MOST)
    (inside / "own" / "adapter_config.json").unlink()
    os.mkfifo(inside / "own" / "adapter_config.json")
    with pytest.raises(AdapterRefused, match="no regular file"):
        read_adapter_files(inside, "own", MOST)


def test_the_digest_needs_no_model(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a")
    files = read_adapter_files(tmp_path, "a", MOST)
    assert adapter_digest(files) == read(folder).digest
