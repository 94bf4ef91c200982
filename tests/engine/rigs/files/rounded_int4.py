"""An unquantised checkpoint with its matrices rounded to int4, without calibration.

The format is llm-compressor's `pack-quantized`, symmetric, in groups of 128: scale = largest / 7.
AWQ and GPTQ choose scales and integers by activations, and lose less accuracy.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.engine.rigs.files.int4_checkpoints import PACKED, Integers, packed, rewrite, say

GROUP = 128
MIDDLE, LEAST, MOST = 8, 0, 15
LEAST_SCALE = 1e-6  # float16 scale of a group of zeros


def write_int4(source: Path, directory: Path) -> Path:
    """Write a copy of `source` below `directory`, with embedding, head and norms unchanged."""
    target = directory / "int4"
    shutil.copytree(source, target)
    tensors = dict(load_file(source / "model.safetensors"))
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        module, made = name.removesuffix(".weight"), rounded(tensors.pop(name))
        tensors |= {f"{module}.{suffix}": one for suffix, one in packed(made).items()}
    rewrite(target, tensors)
    say(target, PACKED)
    return target


def rounded(weight: Tensor) -> Integers:
    """Round `weight` (N, K) of any float dtype; K is a multiple of 128."""
    rows, columns = weight.shape
    groups = weight.float().view(rows, columns // GROUP, GROUP)
    largest = groups.abs().amax(-1) / (MIDDLE - 1)
    scales = largest.clamp(min=LEAST_SCALE).half()
    values = (groups / scales.float()[:, :, None]).round().add(MIDDLE).clamp(LEAST, MOST)
    zeros = torch.full_like(scales, MIDDLE, dtype=torch.int64)
    return Integers(values.view(rows, columns).long(), zeros, scales, GROUP)
