"""Adapters of experts, compared with PEFT: in both forms of files, alone and mixed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.models.adapters.adapter import read_adapter
from engine.models.adapters.adapter_files import read_adapter_files
from engine.models.adapters.errors import AdapterRefused
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.checkpoints import Checkpoint
from tests.engine.rigs.files.adapters import (
    EVERY_MATRIX,
    PeftAdapter,
    load,
    make_adapter,
    opened_adapter,
    rows_of,
    with_fields,
    with_slots,
)
from tests.engine.rigs.hand_driven import HandDriven, build_runner, random_prompt

TOLERANCE = 1e-4
QUERIES = ["q_proj"]
BOTH = ["experts.gate_up_proj", "experts.down_proj"]
# For each recipe, the matrices that the three adapters change. If the experts' names are in a list
# of modules, PEFT makes parameters of them, with twice the rank for gate and up.
CASES: dict[str, list[dict[str, Any]]] = {
    "qwen3-moe": [
        {"target_modules": EVERY_MATRIX},
        {"target_modules": QUERIES, "target_parameters": BOTH, "use_rslora": True},
        {"target_modules": QUERIES, "target_parameters": BOTH[1:]},
    ],
    "mixtral": [
        {"target_modules": ["q_proj", "w1", "w2", "w3"]},
        {"target_modules": [], "target_parameters": BOTH, "r": 3},
        {"target_modules": [], "target_parameters": BOTH[:1]},
    ],
    "gpt-oss": [
        {"target_modules": QUERIES, "target_parameters": BOTH},
        {"target_modules": [], "target_parameters": BOTH, "r": 3},
        {"target_modules": [], "target_parameters": BOTH[:1]},
    ],
    "nemotron-3-latents": [
        {"target_modules": QUERIES, "target_parameters": ["experts.up_proj"]},
    ],
}
CASES["gemma4-moe"] = CASES["llama4"] = CASES["gpt-oss"]


def adapters_of(truth: Checkpoint, folder: Path, cases: list[dict[str, Any]]) -> list[PeftAdapter]:
    return [
        make_adapter(truth, folder / str(seed), seed, **fields) for seed, fields in enumerate(cases)
    ]


@pytest.mark.parametrize("recipe", [name for name in CASES if "latents" not in name])
def test_mixed_adapters_are_each_as_peft_computes_it(
    checkpoint: MakeCheckpoint, recipe: str, tmp_path: Path
) -> None:
    truth = checkpoint(recipe)
    adapters = adapters_of(truth, tmp_path, CASES[recipe])
    runner, slots = with_slots(build_runner(truth.model_dir), of_experts=True)
    for number, adapter in enumerate(adapters):
        load(slots, number + 1, adapter)
    driven, prompts = HandDriven(runner), [random_prompt(length) for length in (9, 17, 5, 30, 1)]
    wanted = [2, 0, 1, 3, 1]
    lengths = [len(prompt) for prompt in prompts]
    got = torch.split(driven.logits(rows_of(driven, prompts, wanted)), lengths)
    for prompt, slot, logits in zip(prompts, wanted, got, strict=True):
        expected = adapters[slot - 1].logits(prompt) if slot else truth.logits(prompt)
        assert (logits - expected).abs().max() < TOLERANCE
        if slot:  # if logits were equal, the test would prove nothing
            assert (logits - truth.logits(prompt)).abs().max() > 0.05
    load(slots, 1, adapters[1])  # replaces the adapter in slot 1
    [again] = rows_of(driven, prompts[:1], [1])
    assert (driven.logits([again]) - got[0]).abs().max() < TOLERANCE


def of_single_experts(
    truth: Checkpoint, folder: Path, experts: range
) -> tuple[PeftAdapter, dict[str, torch.Tensor]]:
    """Write an adapter in PEFT's older form, with a module for each expert; PEFT can still
    load it.
    """
    config, names = truth.truth.config, ("gate_proj", "up_proj", "down_proj")
    inner, hidden, generator = config.moe_intermediate_size, config.hidden_size, torch.Generator()
    make_adapter(truth, folder, target_modules=QUERIES, r=4)
    with_fields(folder, target_modules=[*QUERIES, *names])
    tensors = load_file(folder / "adapter_model.safetensors")
    for layer in (0, 2):  # layer 1 has no experts
        for expert in experts:
            for name in names:
                rows, size_in = (hidden, inner) if name == "down_proj" else (inner, hidden)
                place = f"base_model.model.model.layers.{layer}.mlp.experts.{expert}.{name}"
                for end, shape in (("A", (4, size_in)), ("B", (rows, 4))):
                    drawn = torch.randn(shape, generator=generator) * 0.15
                    tensors[f"{place}.lora_{end}.weight"] = drawn
    save_file(tensors, folder / "adapter_model.safetensors")
    return opened_adapter(truth, folder), tensors


def test_adapters_of_single_experts_are_as_peft_computes_them(
    checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    truth = checkpoint("qwen3-moe")
    adapter, tensors = of_single_experts(truth, tmp_path / "one", range(8))
    runner, slots = with_slots(build_runner(truth.model_dir), of_experts=True)
    load(slots, 2, adapter)
    driven, prompt = HandDriven(runner), random_prompt(23)
    got = driven.logits(rows_of(driven, [prompt], [2]))
    assert (got - adapter.logits(prompt)).abs().max() < TOLERANCE
    assert (got - truth.logits(prompt)).abs().max() > 0.05
    few = {name: one for name, one in tensors.items() if "experts.7." not in name}
    save_file(few, adapter.folder / "adapter_model.safetensors")
    load(slots, 1, adapter)
    other = driven.logits(rows_of(driven, [prompt], [1]))
    assert not torch.allclose(other, got)  # an expert missing from the files counts as zeros


def test_without_room_they_are_refused_by_name(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    truth = checkpoint("qwen3-moe")
    _, without = with_slots(build_runner(truth.model_dir))
    _, slots = with_slots(build_runner(truth.model_dir), of_experts=True)
    adapter = make_adapter(truth, tmp_path / "one", target_modules=[], target_parameters=BOTH)
    load(slots, 1, adapter)
    with pytest.raises(AdapterRefused, match=r"experts.*adapter_experts"):
        load(without, 1, adapter)


def test_sizes_that_tell_nothing_are_refused(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    truth = checkpoint("qwen3-moe")
    _, slots = with_slots(build_runner(truth.model_dir), of_experts=True)
    adapter = make_adapter(truth, tmp_path / "one", target_modules=[], target_parameters=BOTH)
    files = read_adapter_files(tmp_path, "one", 1 << 20)
    read_adapter(files, slots.fits)
    [(layer, config), *_] = slots.fits.experts.items()
    for wrong in (replace(config, num_experts=7), replace(config, size=config.size + 1)):
        fits = replace(slots.fits, experts={**slots.fits.experts, layer: wrong})
        with pytest.raises(AdapterRefused, match="do not tell"):
            read_adapter(files, fits)
    of_single_experts(truth, tmp_path / "two", range(8))
    few = replace(slots.fits, experts={layer: replace(config, num_experts=4)})
    with pytest.raises(AdapterRefused, match="4 experts"):
        read_adapter(read_adapter_files(tmp_path, "two", 1 << 20), few)
    tensors = load_file(adapter.folder / "adapter_model.safetensors")
    twice = tensors | {
        name.replace(".base_layer", ".base_layer.base_layer"): one.clone()
        for name, one in tensors.items()
    }
    save_file(twice, adapter.folder / "adapter_model.safetensors")
    with pytest.raises(AdapterRefused, match="two of"):
        load(slots, 1, adapter)
