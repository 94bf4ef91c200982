"""Checkpoints of known 4-bit integers, packed as AutoAWQ, AutoGPTQ and llm-compressor pack them.

Each has a reference: the dequantised numbers, in `transformers` and saved as unquantised weights.
This module does not know the loader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.rigs.checkpoints import Checkpoint, Recipe, in_truth, make_checkpoint

_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "num_key_value_heads": 2}
# Names of the matrices that the formats quantise.
MATRICES = (
    *("proj.weight", "in_proj_qkv.weight", "in_proj_z.weight", "in_proj_qkvz.weight"),
    *("linear.weight", "per_layer_input_gate.weight", "per_layer_projection.weight"),
    "with_mqa.weight",
)
IN_ORDER = (0, 1, 2, 3, 4, 5, 6, 7)
OF_AWQ = (0, 2, 4, 6, 1, 3, 5, 7)  # the column at each position of a word, from the lowest bits


@dataclass(frozen=True)
class Integers:
    """A matrix: `values` (N, K) and `zeros` (N, K / G), unsigned; `scales` (N, K / G) float16."""

    values: Tensor
    zeros: Tensor
    scales: Tensor
    group: int

    def written_out(self) -> Tensor:
        """Return the dequantised matrix (N, K) float32: (value - zero) * scale."""
        columns = torch.arange(self.values.shape[1]) // self.group
        difference = self.values.float() - self.zeros.float()[:, columns]
        return difference * self.scales.float()[:, columns]


def draw(rows: int, columns: int, group: int, seed: int, *, least: int | None) -> Integers:
    """Draw random integers, with zero points from `least` on. If `least` is None, all zero points
    are 8.
    """
    generator = torch.Generator().manual_seed(seed)
    groups = rows, columns // group
    zeros = torch.full(groups, 8)
    if least is not None:
        zeros = torch.randint(least, 16 + least, groups, generator=generator)
    values = torch.randint(0, 16, (rows, columns), generator=generator)
    usual = 1.5 * columns**-0.5 / (4.6 if least is None else 6.5)
    scales = usual * (0.5 + torch.rand(groups, generator=generator))
    return Integers(values, zeros, scales.half(), group)


def in_words(numbers: Tensor, places: Sequence[int] = IN_ORDER) -> Tensor:
    """Pack `numbers` (A, B) of 4 bits into words (A, B / 8) int32."""
    given = numbers.numpy().astype(np.uint32)
    words = np.zeros((given.shape[0], given.shape[1] // 8), dtype=np.uint32)
    for word in range(words.shape[1]):
        for place, column in enumerate(places):
            words[:, word] |= given[:, 8 * word + column] << np.uint32(4 * place)
    return torch.from_numpy(words.view(np.int32).copy())


def awq(made: Integers) -> dict[str, Tensor]:
    """Pack like AutoAWQ: eight columns of the transposed matrix in a word."""
    return {
        "qweight": in_words(made.values.T.contiguous(), OF_AWQ),
        "qzeros": in_words(made.zeros.T.contiguous(), OF_AWQ),
        "scales": made.scales.T.contiguous(),
    }


def gptq(made: Integers, less: int = 1) -> dict[str, Tensor]:
    """Pack like AutoGPTQ: integers in words along columns, zero points along rows."""
    rows, columns = made.values.shape
    return {
        "qweight": in_words(made.values).T.contiguous(),
        "qzeros": in_words(made.zeros.T.contiguous() - less),
        "scales": made.scales.T.contiguous(),
        "g_idx": (torch.arange(columns) // made.group).int(),
        "bias": torch.zeros(rows).half(),  # some files have a bias for every matrix
    }


def gptq_v2(made: Integers) -> dict[str, Tensor]:
    return {name: one for name, one in gptq(made, less=0).items() if name not in ("g_idx", "bias")}


def packed(made: Integers) -> dict[str, Tensor]:
    """Pack like llm-compressor: integers in words along columns."""
    tensors = {
        "weight_packed": in_words(made.values),
        "weight_scale": made.scales,
        "weight_shape": torch.tensor(made.values.shape),
    }
    if bool((made.zeros != 8).any()):
        tensors["weight_zero_point"] = in_words(made.zeros.T.contiguous()).T.contiguous()
    return tensors


@dataclass(frozen=True)
class Kind:
    """A format: its config fields, its function that packs a matrix, its zero points and its group
    size.
    """

    words: dict[str, Any]
    pack: Callable[[Integers], dict[str, Tensor]]
    least: int | None = None
    group: int = 128


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
PACKED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "int",
                "strategy": "group",
                "group_size": 128,
                "symmetric": True,
            },
            "input_activations": None,
        }
    },
}


def packed_words(**fields: Any) -> dict[str, Any]:
    """Return PACKED with changed fields of the weights."""
    words: dict[str, Any] = json.loads(json.dumps(PACKED))
    words["config_groups"]["group_0"]["weights"].update(fields)
    return words


KINDS = {
    "awq": Kind(AWQ, awq, least=0),
    "gptq": Kind(GPTQ, gptq),
    "gptq-asym": Kind({**GPTQ, "sym": False, "group_size": 64}, gptq, least=1, group=64),
    "gptq_v2": Kind(
        {**GPTQ, "sym": False, "checkpoint_format": "gptq_v2"}, gptq_v2, least=0
    ),
    "packed": Kind(PACKED, packed),
    "packed-asym": Kind(packed_words(symmetric=False, group_size=32), packed, least=0, group=32),
}  # fmt: skip


def is_quantised(name: str) -> bool:
    """Return whether a file's tensor is a layer's matrix other than a router."""
    return name.endswith(MATRICES) and "router." not in name


@dataclass(frozen=True)
class Int4Checkpoint:
    """A checkpoint of integers with its reference, and a checkpoint of the dequantised numbers."""

    int4: Checkpoint
    written_out: Path


def make_int4(kind: Kind, parent: Path, recipe: Recipe | None = None) -> Int4Checkpoint:
    """Draw every matrix of the layers anew; keep embedding, head and norms."""
    recipe = recipe or Recipe("Llama", SIZES)
    made = make_checkpoint(recipe, parent / "int4")
    plain = make_checkpoint(recipe, parent / "written-out").model_dir
    kept = _apart(load_file(made.model_dir / "model.safetensors"))
    written = dict(kept)
    for seed, name in enumerate(sorted(name for name in kept if is_quantised(name))):
        module = name.removesuffix(".weight")
        rows, columns = kept.pop(name).shape
        integers = draw(rows, columns, kind.group, seed, least=kind.least)
        files = {f"{module}.{suffix}": one for suffix, one in kind.pack(integers).items()}
        kept |= {name: one for name, one in files.items() if name not in kept}
        written[name] = integers.written_out()
        _of_truth(made, name).copy_(written[name])
    rewrite(made.model_dir, kept)
    rewrite(plain, written)
    say(made.model_dir, kind.words)
    return Int4Checkpoint(made, plain)


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Name each expert's matrices if the file has all experts in one tensor (Gemma 4)."""
    for name in [name for name in tensors if name.endswith((".gate_up_proj", ".down_proj"))]:
        place, _, last = name.rpartition(".")
        parts = ("gate_proj", "up_proj") if last == "gate_up_proj" else (last,)
        for number, expert in enumerate(tensors.pop(name)):
            matrices = zip(parts, expert.chunk(len(parts)), strict=True)
            tensors |= {f"{place}.{number}.{part}.weight": one for part, one in matrices}
    return tensors


def _of_truth(made: Checkpoint, name: str) -> Tensor:
    """Return the reference model's matrix for a name in the checkpoint.

    In the reference model an expert's matrix is a slice of one tensor of all experts.
    """
    found = _EXPERT.fullmatch(name)
    if found is None:
        whole: Tensor = made.truth.get_parameter(in_truth(name)).data
        return whole
    place, number, kind = found.groups()
    experts: dict[str, Tensor] = dict(made.truth.get_submodule(in_truth(place)).named_parameters())
    if (alone := experts.get(f"{kind}_proj")) is not None:
        return alone.data[int(number)]
    return experts["gate_up_proj"].data[int(number)].chunk(2)[kind == "up"]


def rewrite(model_dir: Path, tensors: dict[str, Tensor]) -> None:
    """Replace the tensors of a file that may be memory-mapped."""
    path = model_dir / "model.safetensors"
    save_file(tensors, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def say(model_dir: Path, words: dict[str, Any]) -> None:
    """Write the format's fields into the config."""
    config = json.loads((model_dir / "config.json").read_text())
    config["quantization_config"] = words
    (model_dir / "config.json").write_text(json.dumps(config))
