"""Adapters for a tiny checkpoint, made by PEFT, with PEFT's model as the reference of tests."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from engine.execution.runner import ModelRunner
from engine.models.adapters.adapted import AdapterSlots, with_adapters
from engine.models.adapters.adapter import read_adapter
from engine.models.adapters.adapter_files import read_adapter_files
from engine.step import Row
from tests.engine.rigs.checkpoints import Checkpoint
from tests.engine.rigs.hand_driven import HandDriven, data_row

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a library warns when it is imported
    import peft

EVERY_MATRIX = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class PeftAdapter:
    """A saved adapter, and PEFT's model that contains it."""

    folder: Path
    truth: Any

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> Tensor:
        """Return the logits (tokens, V) float32, in one pass, without any cache."""
        return torch.as_tensor(self.truth(torch.tensor([token_ids]), use_cache=False).logits[0])


def make_adapter(
    checkpoint: Checkpoint, folder: Path, seed: int = 0, std: float = 0.15, **fields: Any
) -> PeftAdapter:
    """Build and save an adapter whose A and B are drawn at random."""
    settings = {"target_modules": EVERY_MATRIX, "r": 8, "lora_alpha": 16, **fields}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = peft.LoraConfig(task_type="CAUSAL_LM", **settings)
        model = peft.get_peft_model(copy.deepcopy(checkpoint.truth), config).eval()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.normal_(0.0, std, generator=generator)
        model.save_pretrained(str(folder))
    return PeftAdapter(folder, model)


def opened_adapter(checkpoint: Checkpoint, folder: Path) -> PeftAdapter:
    """Open a saved adapter with PEFT, which converts older forms."""
    model = type(checkpoint.truth).from_pretrained(checkpoint.model_dir)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PeftAdapter(folder, peft.PeftModel.from_pretrained(model, str(folder)).eval())


def with_fields(folder: Path, **fields: Any) -> Path:
    """Change fields of a saved adapter's config."""
    path = folder / "adapter_config.json"
    config = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode(config | fields))
    return folder


def with_slots(
    runner: ModelRunner, num_adapters: int = 3, *, of_experts: bool = False
) -> tuple[ModelRunner, AdapterSlots]:
    """Add room for adapters of up to rank 16."""
    decoder = runner.decoder
    parameters, slots = with_adapters(
        decoder.config, decoder.parameters, num_adapters, 16, of_experts=of_experts
    )
    adapted = replace(decoder, parameters=parameters, num_slots=slots.num_slots)
    return replace(runner, decoder=adapted), slots


def load(slots: AdapterSlots, slot: int, adapter: PeftAdapter) -> None:
    """Copy a saved adapter to a device slot."""
    files = read_adapter_files(adapter.folder.parent, adapter.folder.name, 1 << 20)
    slots.load(slot, read_adapter(files, slots.fits))


def rows_of(driven: HandDriven, prompts: list[list[int]], slots: list[int]) -> list[Row]:
    """Return a row for each prompt with the adapter in its slot."""
    return [
        msgspec.structs.replace(data_row(driven.add(prompt), 0, len(prompt)), adapter=slot)
        for prompt, slot in zip(prompts, slots, strict=True)
    ]
