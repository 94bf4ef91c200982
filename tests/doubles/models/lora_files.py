"""The files of a LoRA adapter of one matrix, without PEFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.models.adapters.adapter import AdapterShapes
from engine.models.names import PLAIN_NAMES

Q_PROJ = "model.layers.0.self_attn.q_proj"
OUT, IN, RANK = 12, 8, 4
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": RANK,
    "lora_alpha": 8,
    "target_modules": ["q_proj"],
    "lora_dropout": 0.1,
    "use_dora": False,
    "modules_to_save": None,
    "rank_pattern": {},
}


def fitting(most_rank: int = 8) -> AdapterShapes:
    """Return the shapes of a model that the adapter fits."""
    return AdapterShapes({Q_PROJ: (OUT, IN)}, PLAIN_NAMES, most_rank, torch.float32)


def tensors(seed: int = 0) -> dict[str, Tensor]:
    """Return the adapter's tensors by their names in the file."""
    generator = torch.Generator().manual_seed(seed)
    return {
        f"base_model.model.{Q_PROJ}.lora_A.weight": torch.randn(RANK, IN, generator=generator),
        f"base_model.model.{Q_PROJ}.lora_B.weight": torch.randn(OUT, RANK, generator=generator),
    }


def write_adapter(
    folder: Path,
    seed: int = 0,
    config: dict[str, Any] | None = None,
    named: dict[str, Tensor] | None = None,
) -> Path:
    """Write an adapter's files. `config` replaces fields of its config, and `named` its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_bytes(msgspec.json.encode(CONFIG | (config or {})))
    save_file(tensors(seed) | (named or {}), folder / "adapter_model.safetensors")
    return folder
