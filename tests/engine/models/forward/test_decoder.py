"""The decoder, compared with `transformers` on the same weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.sequences.sequence import Sequence
from engine.step import Row
from kernels.attention.batch_layout import BatchLayout
from kernels.norms.gate import Gate
from kernels.ops import GateMul, PagedAttention
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.checkpoints import RECIPES
from tests.engine.rigs.hand_driven import HandDriven, build_runner, data_row, random_prompt

TOLERANCE = 1e-4
CPU = torch.device("cpu")


def logits_of(driven: HandDriven, rows: list[Row]) -> torch.Tensor:
    """Return the logits of every token of `rows`, computed in one step."""
    return driven.logits(rows)


def chunked(driven: HandDriven, sequence: Sequence, chunks: list[int]) -> torch.Tensor:
    starts = [sum(chunks[:index]) for index in range(len(chunks))]
    parts = [
        logits_of(driven, [data_row(sequence, start, new)])
        for start, new in zip(starts, chunks, strict=True)
    ]
    return torch.cat(parts)


class Journal:
    """A log of a decoder's waits for its offloaded layers and of its reads of keys, in order."""

    def __init__(self, attention: PagedAttention, first: int) -> None:
        self.first = first
        self.notes: list[str] = []
        self._attention = attention

    def wait(self) -> None:
        self.notes.append("wait")

    def attend(self, q: Tensor, kv: Tensor, layout: BatchLayout, *how: Any) -> Tensor:
        self.notes.append("read")
        return self._attention(q, kv, layout, *how)


@pytest.mark.parametrize("first", [0, 1])
def test_a_decoder_waits_once_before_the_first_of_its_late_layers(
    checkpoint: MakeCheckpoint, first: int
) -> None:
    driven = HandDriven(build_runner(checkpoint("llama").model_dir))
    prompt = random_prompt(17)
    expected = logits_of(driven, [data_row(driven.add(prompt), 0, 17)])
    decoder = driven.runner.decoder
    journal = Journal(decoder.ops.paged_attention, first)
    ops = replace(decoder.ops, paged_attention=journal.attend)
    driven.runner = replace(driven.runner, decoder=replace(decoder, ops=ops, late=journal))
    assert torch.equal(logits_of(driven, [data_row(driven.add(prompt), 0, 17)]), expected)
    layers = ["read"] * len(decoder.config.layers)
    assert journal.notes == [*layers[:first], "wait", *layers[first:]]


@pytest.mark.parametrize("name", RECIPES)
def test_logits_are_those_of_transformers(checkpoint: MakeCheckpoint, name: str) -> None:
    driven = HandDriven(build_runner(checkpoint(name).model_dir))
    prompt = random_prompt(131)
    expected = checkpoint(name).logits(prompt)
    got = logits_of(driven, [data_row(driven.add(prompt), 0, len(prompt))])
    assert expected.std() > 0.5, "logits this flat would agree whatever they are"
    assert (got - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize("name", RECIPES)
def test_logits_do_not_depend_on_how_the_prompt_is_cut(
    checkpoint: MakeCheckpoint, name: str
) -> None:
    driven = HandDriven(build_runner(checkpoint(name).model_dir))
    prompt = random_prompt(75)
    expected = checkpoint(name).logits(prompt)
    # the single tokens from 45 to 64 cross the ends of blocks at 48 and 64
    singly = [*[1] * 10, 35, *[1] * 20, 10]
    for chunks in (singly, [16, 16, 16, 27], [5, 40, 1, 29]):
        got = chunked(driven, driven.add(prompt), chunks)
        assert (got - expected).abs().max() < TOLERANCE, chunks


@pytest.mark.parametrize("name", ["llama3-rope", "qwen3", "gpt-oss", "gemma3"])
def test_rows_of_a_mixed_batch_do_not_disturb_each_other(
    checkpoint: MakeCheckpoint, name: str
) -> None:
    driven = HandDriven(build_runner(checkpoint(name).model_dir))
    prompts = [random_prompt(length, seed=length) for length in (33, 18, 50, 7)]
    sequences = [driven.add(prompt) for prompt in prompts]
    # Two rows that decode after a computed prompt, a chunk from the middle of a prompt, and a whole
    # prompt.
    logits_of(driven, [data_row(sequences[0], 0, 32), data_row(sequences[1], 0, 17)])
    logits_of(driven, [data_row(sequences[2], 0, 21)])
    mixed = [
        data_row(sequences[0], 32, 1),
        data_row(sequences[1], 17, 1),
        data_row(sequences[2], 21, 29),
        data_row(sequences[3], 0, 7),
    ]
    got = logits_of(driven, mixed).split([row.num_new for row in mixed])  # type: ignore[no-untyped-call]
    for row, prompt, logits in zip(mixed, prompts, got, strict=True):
        expected = checkpoint(name).logits(prompt)[row.start : row.end]
        assert (logits - expected).abs().max() < TOLERANCE


def test_only_the_asked_for_tokens_get_logits(checkpoint: MakeCheckpoint) -> None:
    driven = HandDriven(build_runner(checkpoint("llama").model_dir))
    prompt = random_prompt(20)
    batch = driven.batch([data_row(driven.add(prompt), 0, 20)])
    pool = driven.runner.pool.layers
    every = driven.runner.decoder.logits(batch.token_ids, batch.layout, pool, torch.arange(20))
    for outputs in ([19], [3, 11], [11, 3], []):
        index = torch.tensor(outputs, dtype=torch.int64)
        some = driven.runner.decoder.logits(batch.token_ids, batch.layout, pool, index)
        assert some.shape == (len(outputs), driven.model.vocab_size)
        assert some.dtype == torch.float32
        torch.testing.assert_close(some, every[index])


class Gates:
    """The activation op of an MLP, which records the number of tokens."""

    def __init__(self, gate_mul: GateMul) -> None:
        self.rows: list[int] = []
        self._gate_mul = gate_mul

    def gate_mul(self, gate_up: Tensor, gate: Gate) -> Tensor:
        self.rows.append(gate_up.shape[0])
        return self._gate_mul(gate_up, gate)


@pytest.mark.parametrize(
    ("outputs", "rows"), [(list(range(20)), [20, 20, 20]), ([3, 19], [20, 20, 2]), ([], [20, 20])]
)
def test_behind_the_last_attention_only_the_asked_for_tokens_are_computed(
    checkpoint: MakeCheckpoint, outputs: list[int], rows: list[int]
) -> None:
    driven = HandDriven(build_runner(checkpoint("llama").model_dir))
    batch = driven.batch([data_row(driven.add(random_prompt(20)), 0, 20)])
    decoder, pool = driven.runner.decoder, driven.runner.pool
    gates = Gates(decoder.ops.gate_mul)
    decoder = replace(decoder, ops=replace(decoder.ops, gate_mul=gates.gate_mul))
    kept = torch.tensor(outputs, dtype=torch.int64)
    decoder.logits(batch.token_ids, batch.layout, pool.layers, kept)
    assert gates.rows == rows


@pytest.mark.parametrize("outputs", [[19], []])
def test_the_kv_of_every_layer_is_written_whatever_is_asked_for(
    checkpoint: MakeCheckpoint, outputs: list[int]
) -> None:
    driven = HandDriven(build_runner(checkpoint("llama").model_dir))
    batch = driven.batch([data_row(driven.add(random_prompt(20)), 0, 20)])
    decoder, pool = driven.runner.decoder, driven.runner.pool
    pool.tensor.zero_()
    decoder.logits(batch.token_ids, batch.layout, pool.layers, torch.arange(20))
    expected = pool.tensor.clone()
    pool.tensor.zero_()
    kept = torch.tensor(outputs, dtype=torch.int64)
    decoder.logits(batch.token_ids, batch.layout, pool.layers, kept)
    assert torch.equal(pool.tensor, expected)
    for layer in range(len(decoder.config.layers)):
        assert pool.layers[layer].any()
