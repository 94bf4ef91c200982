"""The fingerprint changes with everything that a block's bits depend on, and with nothing else."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.models.config import ModelConfig
from engine.models.names import CheckpointNames
from engine.startup.fingerprint import (
    NOT_IN_BLOCKS,
    BlockOrigin,
    dummy_digest,
    tokenizer_digest,
    weights_digest,
)
from engine.startup.loading import open_model
from storage.layouts.kv_layout import KvGroup
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.origins import LAYER, MODEL, ORIGIN, another


@pytest.mark.parametrize("name", [field.name for field in fields(BlockOrigin)])
def test_every_field_of_the_origin_counts(name: str) -> None:
    changed = replace(ORIGIN, **{name: another(getattr(ORIGIN, name))})
    assert changed.fingerprint() != ORIGIN.fingerprint()
    assert replace(ORIGIN).fingerprint() == ORIGIN.fingerprint()
    assert len(ORIGIN.fingerprint()) == 32


@pytest.mark.parametrize(
    "name",
    [f.name for f in fields(ModelConfig) if f.name not in NOT_IN_BLOCKS],
)
def test_every_field_of_the_model_counts_that_computes(name: str) -> None:
    model = replace(MODEL, **{name: another(getattr(MODEL, name))})
    assert replace(ORIGIN, model=model).fingerprint() != ORIGIN.fingerprint()


def test_the_slice_of_every_rank_of_every_number_of_ranks_has_its_own() -> None:
    [group] = ORIGIN.kv.groups
    whole = replace(ORIGIN.kv, groups=(replace(group, num_kv_heads=4),))
    slices = [whole, *(whole.slice_of(rank, of) for of in (2, 4) for rank in range(of))]
    assert len({replace(ORIGIN, kv=kv).fingerprint() for kv in slices}) == 7
    assert replace(ORIGIN, kv=whole.slice_of(0, 1)) == replace(ORIGIN, kv=whole)


@pytest.mark.parametrize("name", [field.name for field in fields(KvGroup)])
def test_every_field_of_a_group_of_layers_counts(name: str) -> None:
    [group] = ORIGIN.kv.groups
    value: Any = group.layers[::-1] if name == "layers" else another(getattr(group, name))
    kv = replace(ORIGIN.kv, groups=(replace(group, **{name: value}),))
    assert replace(ORIGIN, kv=kv).fingerprint() != ORIGIN.fingerprint()


@pytest.mark.parametrize("part", ["mixer", "mlp", "norm"])
def test_every_field_of_the_last_layer_counts(part: str) -> None:
    before = getattr(LAYER, part)
    for name in (field.name for field in fields(before)):
        changed = replace(
            LAYER, **{part: replace(before, **{name: another(getattr(before, name))})}
        )
        model = replace(MODEL, layers=(LAYER, changed))
        assert replace(ORIGIN, model=model).fingerprint() != ORIGIN.fingerprint(), name


def test_where_sequences_stop_and_what_tensors_are_called_does_not_count() -> None:
    names = CheckpointNames((("language_model.", ""),))
    model = replace(MODEL, eos_token_ids=(5, 6), dtype=None, names=names)
    assert replace(ORIGIN, model=model).fingerprint() == ORIGIN.fingerprint()


@pytest.fixture
def model_dir(checkpoint: MakeCheckpoint, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint("llama").model_dir, tmp_path / "model"))


def opened(model_dir: Path, **settings: Any) -> bytes:
    config = EngineConfig.of(
        **{
            "model_dir": str(model_dir),
            "socket": "",
            "device": "cpu",
            "cache_tokens": 64,
            **settings,
        }
    )
    return open_model(config).welcome.fingerprint


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}, indent=7))


def test_one_changed_weight_changes_the_fingerprint(model_dir: Path) -> None:
    before = opened(model_dir)
    assert opened(model_dir) == before
    path = model_dir / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] += 1e-3
    save_file(tensors, path.with_suffix(".new"), metadata={"format": "pt"})
    path.with_suffix(".new").rename(path)
    assert opened(model_dir) != before


def test_a_changed_shard_changes_the_digest(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(checkpoint("llama-sharded").model_dir, tmp_path / "model"))
    before = weights_digest(copy)
    assert before == weights_digest(checkpoint("llama-sharded").model_dir)
    path = sorted(copy.glob("*.safetensors"))[-1]
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    assert weights_digest(copy) != before


def test_the_meaning_of_the_config_counts_not_its_spelling(model_dir: Path) -> None:
    before = opened(model_dir)
    edit_json(model_dir / "config.json", use_cache=False, eos_token_id=[2, 3])
    assert opened(model_dir) == before
    edit_json(model_dir / "config.json", rms_norm_eps=1e-5)
    assert opened(model_dir) != before


def test_the_tokenizer_counts(model_dir: Path) -> None:
    without = opened(model_dir)
    (model_dir / "tokenizer.json").write_text("{}")
    with_one = opened(model_dir)
    (model_dir / "tokenizer.json").write_text("{ }")
    assert len({without, with_one, opened(model_dir)}) == 3
    assert tokenizer_digest(model_dir) == tokenizer_digest(model_dir)


@pytest.mark.parametrize(
    "settings", [{"dtype": "bfloat16"}, {"block_size": 32}, {"load_format": "dummy"}]
)
def test_the_settings_count_that_a_block_depends_on(
    model_dir: Path, settings: dict[str, Any]
) -> None:
    before = opened(model_dir)
    assert opened(model_dir, **settings) != before
    assert opened(model_dir, cache_tokens=128, max_running=3) == before


def test_dummy_weights_are_told_by_their_seed() -> None:
    assert dummy_digest(0) == dummy_digest(0)
    assert dummy_digest(0) != dummy_digest(1)
