"""A model whose files or settings were changed in place finds none of its earlier blocks.

Neither the disk after a restart nor the exchange with another engine gives it such blocks. Shapes,
names and the directory are the same, so only the fingerprint differs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.startup.warm_up import warm_up
from tests.engine.rigs.checkpoints import SLIDING, Checkpoint
from tests.engine.rigs.files.int4_checkpoints import rewrite
from tests.seams.exchange.pair import BOUNDS, GREEDY, PATIENT, PROMPT, WHOLE, A, Pair
from tests.seams.support.real_engine import Bounds, ExchangeAt, RealEngine

ON_DISK = replace(BOUNDS, disk_bytes=1 << 21)
UP_PROJ, NORM = "model.layers.1.mlp.up_proj.weight", "model.layers.2.input_layernorm.weight"
Change = Callable[[Path], object]


def with_one_more(name: str) -> Change:
    """Return a function that changes one number of the tensor `name`, in the same file."""

    def change(model_dir: Path) -> None:
        tensors = load_file(model_dir / "model.safetensors")
        tensors[name].view(-1)[7] += 1e-3
        rewrite(model_dir, tensors)

    return change


def with_kv_scales(number: float) -> Change:
    def change(model_dir: Path) -> None:
        scales = {"model.layers.0.self_attn.k_scale": torch.tensor(number)}
        rewrite(model_dir, {**load_file(model_dir / "model.safetensors"), **scales})

    return change


def saying(**fields: object) -> Change:
    """Return a function that changes these fields of config.json."""

    def change(model_dir: Path) -> None:
        path = model_dir / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def nothing(_: Path) -> None:
    """Change nothing, as a positive control."""


def touched(model_dir: Path) -> None:
    """Rewrite the same bytes, as a positive control."""
    shutil.copy(model_dir / "model.safetensors", model_dir / "new")
    (model_dir / "new").rename(model_dir / "model.safetensors")


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0}
ORIGINAL = {"original_max_position_embeddings": 256}
FILES: dict[str, Change] = {
    "a weight": with_one_more(UP_PROJ),
    "a norm": with_one_more(NORM),
    "kv scales": with_kv_scales(0.01),
    "yarn": saying(rope_parameters={**YARN, **ORIGINAL}),
    "attn_factor": saying(rope_parameters={**YARN, **ORIGINAL, "attn_factor": 0.9}),
    "base of rope": saying(rope_parameters={"rope_type": "default", "rope_theta": 10001.0}),
    "a window": saying(
        use_sliding_window=True, sliding_window=48, layer_types=[*["full_attention"] * 2, SLIDING]
    ),
    "an epsilon": saying(rms_norm_eps=1e-5),
}
SETTINGS: dict[str, Bounds] = {
    "weights in fp8": replace(BOUNDS, quantization="fp8"),
    "kv in fp8": replace(BOUNDS, kv_dtype="fp8"),
    "both": replace(BOUNDS, quantization="fp8", kv_dtype="fp8"),
}
SAME: dict[str, Change] = {"nothing": nothing, "touched": touched}


@dataclass(frozen=True)
class Before:
    """The engine of the unchanged model, which has cached PROMPT, and its disk."""

    engine: RealEngine
    disk: Path


@pytest.fixture(scope="module")
def before(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Before]:
    directory = tmp_path_factory.mktemp("before")
    at = ExchangeAt(str(directory / "x"))
    engine = RealEngine(str(checkpoint.model_dir), ON_DISK, disk=directory / "disk", exchange=at)
    pair = Pair(engine, engine, "")
    first = pair.compute("first", PROMPT, A)
    assert pair.compute("again", PROMPT, A) == first
    engine.core.spill(60.0)
    yield Before(engine, directory / "disk")
    engine.close()


def reused(engine: RealEngine, name: str) -> int:
    """Return the number of blocks that a request found in any tier."""
    return engine.finished(name).reused.tokens // BOUNDS.block_size


def found_by(model_dir: Path, bounds: Bounds, before: Before, tmp_path: Path) -> tuple[int, int]:
    """Return how many blocks of PROMPT come over the exchange, and from disk after a restart."""
    exchange = before.engine.exchange
    assert exchange is not None
    assert exchange.address is not None
    at = ExchangeAt(None, None, PATIENT, 30.0)
    here = RealEngine(str(model_dir), bounds, exchange=at)
    pair = Pair(before.engine, here, exchange.address)
    pair.fetch("fetched", PROMPT, A)
    over_exchange = reused(here, "fetched")
    assert pair.fetched().fetches == 1, "it was asked"
    here.close()
    disk = Path(shutil.copytree(before.disk, tmp_path / "disk"))
    later = RealEngine(str(model_dir), replace(bounds, disk_bytes=ON_DISK.disk_bytes), disk=disk)
    restored = warm_up(later.core.components)
    later.submit("later", PROMPT, GREEDY, namespace=A)
    later.run()
    from_disk = reused(later, "later")
    assert bool(restored) == bool(from_disk)
    later.close()
    return over_exchange, from_disk


@pytest.mark.parametrize("change", [*SAME, *FILES])
def test_blocks_are_found_by_the_same_files_alone(
    checkpoint: Checkpoint, before: Before, tmp_path: Path, change: str
) -> None:
    model_dir = Path(shutil.copytree(checkpoint.model_dir, tmp_path / "model"))
    {**SAME, **FILES}[change](model_dir)
    found = WHOLE if change in SAME else 0
    assert found_by(model_dir, BOUNDS, before, tmp_path) == (found, found)


@pytest.mark.parametrize("setting", SETTINGS)
def test_blocks_are_found_by_the_same_formats_alone(
    checkpoint: Checkpoint, before: Before, tmp_path: Path, setting: str
) -> None:
    assert found_by(checkpoint.model_dir, SETTINGS[setting], before, tmp_path) == (0, 0)
