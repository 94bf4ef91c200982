"""A row with many sampling options costs the host as much per step as a plain row.

The tests count Python instructions of this repository, not time, so they notice any loop over
entries. `test_tables` counts the bytes that a step copies to the device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from engine.sampling.planner import Planner
from engine.sampling.sampler import Sampler
from engine.sampling.tables import SlotTables
from engine.sequences.sequence import Sequence
from kernels.ops import torch_ops
from tests.engine.rigs.hand_driven import CountedSeeds, last_rows, sampling, sequence_of

ROOT = Path(__file__).parents[3]
OURS = tuple(f"{ROOT / room}/" for room in ("engine", "kernels", "prefix_cache", "tests"))
VOCAB, EOS, BATCH_SLOTS = 3_000, 1, 4


def instructions(work: Callable[[], object]) -> int:
    """Count the Python instructions that `work` runs in the engine and in this module."""
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        del arg
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def rows_of(wishes: list[dict[str, Any]], num_output: int) -> list[Sequence]:
    rows = []
    for batch_slot, wish in enumerate(wishes):
        row = sequence_of([3] * 50, sampling(4_000, **wish), block_ids=[0])
        row.batch_slot = batch_slot
        for token in range(num_output):
            row.append(token % VOCAB)
        rows.append(row)
    return rows


def cost_of_a_step(wish: dict[str, Any], num_output: int = 5) -> int:
    """Count the instructions of a step of two rows: one with options, one plain."""
    planner = Planner(VOCAB, (EOS,), CountedSeeds(), BATCH_SLOTS)
    sampler = Sampler(planner, torch_ops(), SlotTables(BATCH_SLOTS, VOCAB))
    rows = rows_of([{}, wish], num_output)

    def step() -> None:
        sampler.launch(torch.zeros((2, VOCAB)), last_rows(rows), torch.tensor([4, 4])).collect()

    step()
    for row in rows:
        row.append(4)
    return instructions(step)


LITTLE_AND_MUCH: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "biases": ({"logit_bias": {5: 1.0}}, {"logit_bias": dict.fromkeys(range(1024), 1.0)}),
    "stops": (
        {"min_tokens": 4_000, "stop_token_ids": [7]},
        {"min_tokens": 4_000, "stop_token_ids": range(7, 1000)},
    ),
    "logprobs": ({"num_logprobs": 1}, {"num_logprobs": 128}),
    "top_k": ({"temperature": 1.0, "top_k": 2}, {"temperature": 1.0, "top_k": 2_000}),
}


@pytest.mark.parametrize("option", LITTLE_AND_MUCH)
def test_many_entries_cost_what_few_cost(option: str) -> None:
    little, much = LITTLE_AND_MUCH[option]
    assert cost_of_a_step(much) == cost_of_a_step(little)


def test_a_long_history_costs_what_a_short_one_costs() -> None:
    wish = {"presence_penalty": 1.0, "repetition_penalty": 1.2}
    assert cost_of_a_step(wish, num_output=2_500) == cost_of_a_step(wish, num_output=5)


def test_a_loop_over_entries_would_be_seen() -> None:
    def walk(count: int) -> list[int]:
        return [entry + 1 for entry in range(count)]

    assert instructions(lambda: walk(1_000)) > instructions(lambda: walk(10)) + 900
