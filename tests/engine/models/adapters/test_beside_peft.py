"""A step's adapters, compared with PEFT: alone, mixed, in graphs, and over all weight formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from engine.models.adapters.adapted import AdaptedLinear, with_adapters
from engine.models.modules import walk
from engine.models.parameters import dummy_parameters
from engine.models.served.reading import read_model_config
from kernels.ops import torch_ops
from tests.doubles.engine.device.rerun import Rerun
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.files.adapters import load, make_adapter, rows_of, with_slots
from tests.engine.rigs.hand_driven import (
    HandDriven,
    build_runner,
    data_row,
    random_prompt,
    with_graphs,
)

TOLERANCE = 1e-4
CPU = torch.device("cpu")


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3", "mistral"])
def test_mixed_adapters_are_each_as_peft_computes_it(
    checkpoint: MakeCheckpoint, family: str, tmp_path: Path
) -> None:
    truth = checkpoint(family)
    joined = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
    every: dict[str, Any] = {"target_modules": joined} if family == "phi3" else {}
    adapters = [
        make_adapter(truth, tmp_path / "one", seed=1, **every),
        make_adapter(truth, tmp_path / "two", 2, r=16, use_rslora=True, lora_alpha=4, **every),
        make_adapter(truth, tmp_path / "three", seed=3, r=3, target_modules=["o_proj"]),
    ]
    runner, slots = with_slots(build_runner(truth.model_dir))
    for number, adapter in enumerate(adapters):
        load(slots, number + 1, adapter)
    driven, prompts = HandDriven(runner), [random_prompt(length) for length in (9, 17, 5, 30, 1)]
    wanted = [2, 0, 1, 3, 1]
    lengths = [len(prompt) for prompt in prompts]
    got = torch.split(driven.logits(rows_of(driven, prompts, wanted)), lengths)
    for prompt, slot, logits in zip(prompts, wanted, got, strict=True):
        expected = adapters[slot - 1].logits(prompt) if slot else truth.logits(prompt)
        assert (logits - expected).abs().max() < TOLERANCE
        alone = driven.logits(rows_of(driven, [prompt], [slot]))
        assert (logits - alone).abs().max() < TOLERANCE
        if slot:  # if logits were equal, the test would prove nothing
            assert (logits - truth.logits(prompt)).abs().max() > 0.1


def test_the_last_layer_is_of_the_tokens_that_are_sampled(
    checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    truth = checkpoint("llama")
    adapter = make_adapter(truth, tmp_path / "one")
    runner, slots = with_slots(build_runner(truth.model_dir))
    load(slots, 2, adapter)
    driven, prompts = HandDriven(runner), [random_prompt(7), random_prompt(11)]
    outputs = torch.tensor([17, 6])
    got = driven.logits(rows_of(driven, prompts, [0, 2]), outputs)
    expected = torch.stack((adapter.logits(prompts[1])[-1], truth.logits(prompts[0])[-1]))
    assert (got - expected).abs().max() < TOLERANCE


def test_an_activated_adapter_computes_a_prompt_from_its_invocation_on(
    checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    """Compute a prompt with an adapter from its invocation on, as one row or split within a block.

    Other rows of the step have a plain adapter or none.
    """
    truth = checkpoint("llama")
    activated = make_adapter(truth, tmp_path / "one", 1, alora_invocation_tokens=[7, 8])
    plain = make_adapter(truth, tmp_path / "two", 2)
    runner, slots = with_slots(build_runner(truth.model_dir))
    for number, adapter in enumerate((activated, plain)):
        load(slots, number + 1, adapter)
    prompt = [*random_prompt(19), 7, 8, *random_prompt(9)]
    expected = activated.logits(prompt)
    assert (expected - truth.logits(prompt))[:19].abs().max() < TOLERANCE
    assert (expected - truth.logits(prompt))[19:].abs().max() > 0.1
    driven, prompts, used = HandDriven(runner), [prompt] * 3, [1, 2, 0]
    rows = [
        msgspec.structs.replace(row, adapter_start=19 if row.adapter == 1 else 0)
        for row in rows_of(driven, prompts, used)
    ]
    truths = [expected, plain.logits(prompt), truth.logits(prompt)]
    assert (driven.logits(rows) - torch.cat(truths)).abs().max() < TOLERANCE
    sequence = driven.add(prompt)
    for start, end in ((0, 17), (17, 21), (21, 30)):
        row = data_row(sequence, start, end - start)
        row = msgspec.structs.replace(row, adapter=1, adapter_start=19)
        assert (driven.logits([row]) - expected[start:end]).abs().max() < TOLERANCE


@pytest.mark.parametrize("wanted", [[0, 0, 0], [1, 0, 2], [2, 2, 1]])
def test_one_captured_graph_serves_any_mix(
    checkpoint: MakeCheckpoint, tmp_path: Path, wanted: list[int]
) -> None:
    truth = checkpoint("llama")
    runner, slots = with_slots(build_runner(truth.model_dir))
    captured = with_graphs(runner, Rerun())
    adapters = [make_adapter(truth, tmp_path / name, seed) for seed, name in ((1, "a"), (2, "b"))]
    for number, adapter in enumerate(adapters):  # loaded after the capture
        load(slots, number + 1, adapter)
    driven = HandDriven(captured.eager, captured)
    sequences = [driven.add(random_prompt(length)) for length in (5, 21, 33)]
    for sequence, slot in zip(sequences, wanted, strict=True):
        sequence.adapter_slot = slot
    driven.step(*((sequence, sequence.prompt_len) for sequence in sequences))
    driven.step(*((sequence, 1) for sequence in sequences))
    for sequence, slot in zip(sequences, wanted, strict=True):
        tokens = sequence.token_ids.tolist()
        model = adapters[slot - 1] if slot else truth
        logits = model.logits(tokens)
        assert tokens[-2:] == logits.argmax(1)[-3:-1].tolist()
        other = adapters[1 if slot == 1 else 0].logits(tokens)
        assert (logits - other)[-3:-1].abs().max() > 0.1


@pytest.mark.parametrize("quantization", ["none", "fp8"])
def test_an_adapter_is_added_to_a_product_of_any_format(
    checkpoint: MakeCheckpoint, tmp_path: Path, quantization: str
) -> None:
    truth = checkpoint("llama")
    config = read_model_config(truth.model_dir, quantization=quantization)  # type: ignore[arg-type]
    parameters, slots = with_adapters(
        config, dummy_parameters(config, torch.float32, CPU, 0), 2, 16
    )
    load(slots, 1, make_adapter(truth, tmp_path / "one"))
    of_none, of_both = (torch.tensor(one, dtype=torch.int32) for one in ([0, 0], [0, 1]))
    for linear in walk(parameters.layers, AdaptedLinear):
        x, ops = torch.randn(2, linear.config.size_in), torch_ops()
        assert linear.takes_fp8 is None
        base = linear.product(ops, x)
        assert torch.equal(linear.product(ops.of_tokens(of_none, 3), x), base)
        got = linear.product(ops.of_tokens(of_both, 3), x) - base
        matrices = linear.matrices
        low = torch.split(matrices.a[1] @ x[1], matrices.rank)
        rows = torch.split(matrices.b[1], list(matrices.rows))
        assert not got[0].any()
        more = torch.cat([b @ part for b, part in zip(rows, low, strict=True)])
        assert more.abs().max() > 0.01
        assert (got[1] - more).abs().max() < TOLERANCE
