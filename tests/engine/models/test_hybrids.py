"""Models with recurrent layers: their states between steps, and tokens compared with
`transformers`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.models.checkpoints.weights import load_parameters
from engine.models.checks import check_ranks
from engine.models.config import kv_layout, state_layout
from engine.models.errors import CheckpointError, UnsupportedModel
from engine.models.grid import RankGrid
from engine.models.served.reading import read_model_config
from engine.step import Row
from storage.move import FIRST_SLOT
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.hand_driven import (
    HandDriven,
    build_runner,
    data_row,
    output,
    random_prompt,
    sampling,
)

TOLERANCE = 1e-4
HYBRIDS = [
    *("qwen3-next", "qwen3.5", "qwen3.5-moe", "granite-hybrid", "granite-hybrid-moe"),
    *("nemotron-h", "nemotron-3", "nemotron-3-latents"),
]


@pytest.mark.parametrize("name", HYBRIDS)
def test_64_tokens_after_a_prompt_in_chunks_are_those_of_transformers(
    checkpoint: MakeCheckpoint, name: str
) -> None:
    """`tests/engine/execution/test_runner.py` tests tokens after a prompt in one chunk."""
    driven = HandDriven(build_runner(checkpoint(name).model_dir))
    prompt = random_prompt(75)
    sequence = driven.add(prompt, sampling(64))
    driven.generate(sequence, chunk=13)
    tokens = output(sequence)
    assert checkpoint(name).decoded(prompt, tokens).argmax(-1).tolist() == tokens
    assert len(set(tokens)) > 8, "tokens that repeat would agree whatever the state is"


@pytest.mark.parametrize("name", HYBRIDS)
def test_rows_of_a_mixed_step_do_not_disturb_each_other(
    checkpoint: MakeCheckpoint, name: str
) -> None:
    driven = HandDriven(build_runner(checkpoint(name).model_dir))
    prompts = [random_prompt(length, seed=length) for length in (33, 18, 50, 7)]
    sequences = [driven.add(prompt) for prompt in prompts]
    driven.logits([data_row(sequences[0], 0, 32), data_row(sequences[1], 0, 17)])
    driven.logits([data_row(sequences[2], 0, 21)])
    mixed = [
        data_row(sequences[0], 32, 1),
        data_row(sequences[1], 17, 1),
        data_row(sequences[2], 21, 29),
        data_row(sequences[3], 0, 7),
    ]
    got = driven.logits(mixed).split([row.num_new for row in mixed])  # type: ignore[no-untyped-call]
    for row, prompt, logits in zip(mixed, prompts, got, strict=True):
        expected = checkpoint(name).logits(prompt)[row.start : row.end]
        assert (logits - expected).abs().max() < TOLERANCE


def rows_of(driven: HandDriven, cut: int) -> tuple[Row, Row]:
    """Return two rows of one prompt, with their state slots."""
    sequence = driven.add(random_prompt(60))
    first, second = data_row(sequence, 0, cut), data_row(sequence, cut, 60 - cut)
    [first], [second] = driven.with_states([first]), driven.with_states([second])
    return first, second


def test_a_step_that_is_launched_again_computes_the_same(checkpoint: MakeCheckpoint) -> None:
    driven = HandDriven(build_runner(checkpoint("qwen3.5").model_dir))
    first, second = rows_of(driven, 29)
    assert (first.state_in, second.state_in) == (0, first.state_out)
    driven.logits([first])
    once = driven.logits([second])
    assert torch.equal(driven.logits([second]), once)
    expected = checkpoint("qwen3.5").logits(random_prompt(60))[29:]
    assert (once - expected).abs().max() < TOLERANCE


def test_with_one_version_of_the_state_it_would_not(checkpoint: MakeCheckpoint) -> None:
    """Overwrite the state that a row reads (positive control): logits differ."""
    driven = HandDriven(build_runner(checkpoint("qwen3.5").model_dir))
    first, second = rows_of(driven, 29)
    assert driven.states is not None
    driven.states.slots[second.lease_id, second.end] = first.state_out
    driven.logits([first])
    once = driven.logits([second])
    assert not torch.allclose(driven.logits([second]), once, atol=0.01)


def test_a_row_may_go_on_from_the_state_of_another_sequence(checkpoint: MakeCheckpoint) -> None:
    """Continue from another sequence's state.

    The row gets the KV of earlier blocks and the state at their end, as from a checkpoint.
    """
    driven = HandDriven(build_runner(checkpoint("qwen3.5").model_dir))
    stem = driven.add(random_prompt(60))
    driven.logits([data_row(stem, 0, 32)])
    grown = driven.grow(stem, 2, random_prompt(20, seed=5), 8)
    row = data_row(grown, 32, 20)
    assert driven.states is not None
    states, before = driven.states.slots, data_row(stem, 0, 32)
    states[row.lease_id, 32] = states[before.lease_id, 32]
    got = driven.logits([row])
    expected = checkpoint("qwen3.5").logits(grown.tokens[:52].tolist())[32:]
    assert (got - expected).abs().max() < TOLERANCE


def test_a_state_of_another_position_would_give_other_logits(checkpoint: MakeCheckpoint) -> None:
    """Continue from a state of another position (positive control): at this distance the state
    still matters.
    """
    driven = HandDriven(build_runner(checkpoint("qwen3.5").model_dir))
    sequence = driven.add(random_prompt(60))
    driven.logits([data_row(sequence, 0, 31)])
    driven.logits([data_row(sequence, 31, 1)])
    row = data_row(sequence, 32, 28)
    assert driven.states is not None
    slots = driven.states.slots
    got = driven.logits([row])
    slots[row.lease_id, 32] = slots[row.lease_id, 31]
    assert (driven.logits([row]) - got).abs().max() > 0.01


def test_the_slot_of_nobody_is_never_written(checkpoint: MakeCheckpoint) -> None:
    driven = HandDriven(build_runner(checkpoint("qwen3-next").model_dir))
    sequence = driven.add(random_prompt(40), sampling(4))
    driven.generate(sequence, 16)
    assert driven.runner.states is not None
    assert not driven.runner.states.tensor[:FIRST_SLOT].any()
    assert driven.runner.states.tensor[FIRST_SLOT].any()


def test_kv_is_laid_out_for_layers_with_attention_alone(checkpoint: MakeCheckpoint) -> None:
    model = read_model_config(checkpoint("qwen3.5").model_dir)
    layout = kv_layout(model.layers, "float32", 16)
    assert (len(model.layers), layout.num_layers) == (5, 2)
    assert layout.token_bytes == 2 * 2 * 2 * 32 * 4
    states = state_layout(model.layers, "float32")
    assert states is not None
    assert len(states.layers) == 3
    assert state_layout(read_model_config(checkpoint("qwen3").model_dir).layers, "float32") is None


def test_the_layers_may_be_divided_between_ranks_and_stages(checkpoint: MakeCheckpoint) -> None:
    model = read_model_config(checkpoint("qwen3.5").model_dir)
    for grid in (RankGrid(), RankGrid(tensor=2), RankGrid(stages=2)):
        check_ranks(model, 16, grid)
    with pytest.raises(UnsupportedModel):
        check_ranks(model, 16, RankGrid(stages=8))


def stacked(model_dir: Path, made: Path) -> Path:
    """Make the same checkpoint with all experts of a layer in one tensor, as in Qwen3.5's files."""
    shutil.copytree(model_dir, made)
    path = made / "model.safetensors"
    tensors = load_file(path)
    prefixes = {name.split("experts.")[0] for name in tensors if ".experts." in name}
    for prefix in prefixes:
        own = [
            [tensors.pop(f"{prefix}experts.{expert}.{part}_proj.weight") for expert in range(8)]
            for part in ("gate", "up", "down")
        ]
        both = [torch.cat(pair) for pair in zip(own[0], own[1], strict=True)]
        tensors[f"{prefix}experts.gate_up_proj"] = torch.stack(both)
        tensors[f"{prefix}experts.down_proj"] = torch.stack(own[2])
    save_file(tensors, path, metadata={"format": "pt"})
    return made


@pytest.mark.parametrize("name", ["qwen3-next", "qwen3.5-moe"])
def test_stacked_experts_are_read_as_those_that_lie_apart(
    checkpoint: MakeCheckpoint, tmp_path: Path, name: str
) -> None:
    model_dir = checkpoint(name).model_dir
    config, cpu = read_model_config(model_dir), torch.device("cpu")
    apart = load_parameters(model_dir, config, torch.float32, cpu)
    made = stacked(model_dir, tmp_path / "stacked")
    together = load_parameters(made, config, torch.float32, cpu)
    for one, other in zip(apart.tensors(), together.tensors(), strict=True):
        assert torch.equal(one, other)


def test_stacked_experts_of_another_number_are_refused(
    checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    made = stacked(checkpoint("qwen3-next").model_dir, tmp_path / "stacked")
    tensors = load_file(made / "model.safetensors")
    name = next(name for name in tensors if name.endswith("experts.down_proj"))
    tensors[name] = tensors[name][:7].clone()
    save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})
    config = read_model_config(made)
    with pytest.raises(CheckpointError, match=r"experts.down_proj is \(7, .*of experts"):
        load_parameters(made, config, torch.float32, torch.device("cpu"))


def test_the_decoder_of_a_model_that_sees_is_read(
    checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    """Read the decoder of a vision model: its config is nested, and its tensors have a prefix."""
    saved = checkpoint("qwen3.5").model_dir
    text = json.loads((saved / "config.json").read_text())
    text.pop("architectures")
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "tie_word_embeddings": False,
        "vision_config": {"model_type": "qwen3_5_vision"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    plain = load_file(saved / "model.safetensors")
    prefix = "" if any("language_model" in name for name in plain) else "language_model."
    tensors = {name.replace("model.", f"model.{prefix}", 1): one for name, one in plain.items()}
    tensors["model.visual.patch_embed.weight"] = torch.zeros(2)
    tensors["mtp.norm.weight"] = torch.zeros(2)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    driven, prompt = HandDriven(build_runner(tmp_path)), random_prompt(20)
    got = driven.logits([data_row(driven.add(prompt), 0, 20)])
    assert (got - checkpoint("qwen3.5").logits(prompt)).abs().max() < TOLERANCE
