"""Draft heads in published weight formats are read as their files have them, and change no answer.

Qwen's fp8 files quantise the head's layer, but not its projection; its GPTQ files leave the whole
head unquantised. Other files quantise the whole head. `--quantization fp8` reads unquantised files.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from msgspec import structs
from safetensors.torch import load_file
from torch import Tensor

from engine.config import EngineConfig, Quantization
from engine.link.messages import SamplingParams
from engine.startup.metadata import read_metadata
from kernels.e4m3 import E4M3, LARGEST
from prefix_cache.namespace import Namespace
from tests.engine.rigs.checkpoints import RECIPES, make_checkpoint
from tests.engine.rigs.files.draft_heads import HeadAlone, Truth, save_with_head
from tests.engine.rigs.files.int4_checkpoints import GPTQ, PACKED, SIZES, gptq, packed, rewrite, say
from tests.engine.rigs.files.rounded_int4 import rounded
from tests.engine.rigs.hand_driven import random_prompt
from tests.seams.support.real_engine import Bounds, RealEngine

GREEDY = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
PLAIN = ("lm_head", "re:.*linear_attn.*")
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "mtp.fc")


def by_tensor(weight: Tensor) -> dict[str, Tensor]:
    """Quantise a matrix to fp8 with one scale."""
    scale = weight.abs().max() / LARGEST
    return {"weight": (weight / scale).to(E4M3), "weight_scale": scale}


@dataclass(frozen=True)
class Kind:
    """A published form: its config, a function that writes a matrix, and the head's unquantised
    tensors.
    """

    words: dict[str, Any]
    pack: Callable[[Tensor], dict[str, Tensor]]
    plain: tuple[str, ...]
    plain_layer: bool
    plain_projection: bool


KINDS = {
    "fp8": Kind(
        {**FP8, "modules_to_not_convert": [*PLAIN, "mtp.fc"]},
        by_tensor,
        ("mtp.fc",),
        plain_layer=False,
        plain_projection=True,
    ),
    "gptq": Kind(
        {**GPTQ, "dynamic": {"-:.*linear_attn.*": {}, "-:.*mtp.*": {}}},
        lambda weight: gptq(rounded(weight)),
        ("mtp",),
        plain_layer=True,
        plain_projection=True,
    ),
    "packed": Kind(
        {**PACKED, "ignore": list(PLAIN)},
        lambda weight: packed(rounded(weight)),
        (),
        plain_layer=False,
        plain_projection=False,
    ),
}


@pytest.fixture(scope="module")
def plain_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an unquantised checkpoint with a head. Its sizes are multiples of the quantisation
    groups.
    """
    usual = RECIPES["qwen3.5"]
    recipe = replace(usual, fields={**usual.fields, **SIZES})
    truth = Truth(make_checkpoint(recipe, tmp_path_factory.mktemp("saved")))
    return save_with_head(truth, tmp_path_factory.mktemp("plain"), truth.tensors())


def written(source: Path, directory: Path, kind: Kind) -> Path:
    """Write the checkpoint in this form."""
    made = directory / "quantised"
    copytree(source, made)
    tensors = dict(load_file(source / "model.safetensors"))
    for name in list(tensors):
        module = name.removesuffix(".weight")
        if module.endswith(MATRICES) and not module.startswith(kind.plain):
            of_matrix = kind.pack(tensors.pop(name).float())
            tensors |= {f"{module}.{suffix}": one for suffix, one in of_matrix.items()}
    rewrite(made, tensors)
    say(made, kind.words)
    return made


def without_drafts(config: EngineConfig) -> EngineConfig:
    return structs.replace(config, steps=structs.replace(config.steps, drafts="off"))


def expect_drafts_change_no_answer(model_dir: Path, quantization: Quantization = "none") -> None:
    """Check that some drafts are accepted, and that an engine without drafts gives the same
    answer.
    """
    bounds = Bounds(64, 16, 24, 8, overlap_scheduling=True, quantization=quantization)
    engine = RealEngine(str(model_dir), bounds, drafting=HeadAlone())
    plain = RealEngine(str(model_dir), bounds, over=without_drafts)
    for one in (engine, plain):
        with closing(one):
            one.submit("a", random_prompt(45), GREEDY, namespace=Namespace(b"n" * 16))
            one.run()
    assert engine.tokens("a") == plain.tokens("a")
    assert engine.finished("a").drafts["mtp"][1] > 0
    assert plain.pool.layout.num_layers == engine.pool.layout.num_layers - 1


@pytest.mark.parametrize("name", KINDS)
def test_a_head_is_read_as_the_files_have_it(name: str, plain_dir: Path, tmp_path: Path) -> None:
    kind = KINDS[name]
    made = written(plain_dir, tmp_path, kind)
    head = read_metadata(EngineConfig.of(model_dir=str(made), socket="")).model.draft_head
    assert head is not None
    assert head.plain_layer is kind.plain_layer
    assert head.plain_projection is kind.plain_projection
    expect_drafts_change_no_answer(made)


def test_a_plain_head_is_quantised_with_its_model(plain_dir: Path) -> None:
    expect_drafts_change_no_answer(plain_dir, "fp8")
