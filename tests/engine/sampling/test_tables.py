"""The device's tables of batch slots over many steps, compared with lists rebuilt for each step."""

from __future__ import annotations

import random
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.link.messages import SamplingParams
from engine.sampling.planner import Planner
from engine.sampling.sampler import Sampler
from engine.sampling.tables import SlotTables
from engine.sequences.sequence import Sequence
from engine.step import NewRequest
from kernels.ops import torch_ops
from tests.engine.rigs.hand_driven import CountedSeeds, hold, last_rows, sampling, sequence_of
from tests.engine.sampling.listed import adjusted

VOCAB, EOS, BATCH_SLOTS = 50, 1, 6


def new_sampler(tables: SlotTables | None = None) -> Sampler:
    planner = Planner(VOCAB, (EOS,), CountedSeeds(), BATCH_SLOTS)
    return Sampler(planner, torch_ops(), tables or SlotTables(BATCH_SLOTS, VOCAB))


def any_wish(rng: random.Random) -> SamplingParams:
    """Draw sampling options: all, one or none."""

    def maybe(value: float, otherwise: float) -> float:
        return value if rng.random() < 0.4 else otherwise

    biases = rng.sample(range(VOCAB), rng.choice([0, 0, 1, 7, VOCAB]))
    return sampling(
        30,
        rng.choice([0.0, 0.8]),
        seed=rng.randrange(99),
        presence_penalty=maybe(rng.uniform(-2, 2), 0.0),
        frequency_penalty=maybe(rng.uniform(-2, 2), 0.0),
        repetition_penalty=maybe(rng.uniform(0.5, 2), 1.0),
        logit_bias={token: rng.uniform(-9, 9) for token in biases},
        min_tokens=rng.choice([0, 0, 4]),
        stop_token_ids=rng.sample(range(VOCAB), rng.choice([0, 3])),
        ignore_eos=rng.random() < 0.5,
        num_logprobs=rng.choice([None, None, 0, 5]),
    )


class Rows:
    """Sequences in batch slots, at most one of whose steps is pending."""

    def __init__(self, rng: random.Random, sampler: Sampler) -> None:
        self.sampler = sampler
        self.rng = rng
        self.with_batch_slot: list[Sequence] = []
        self._under_way: list[tuple[list[Sequence], Tensor]] = []

    @property
    def free(self) -> list[int]:
        return sorted(set(range(BATCH_SLOTS)) - {one.batch_slot for one in self.with_batch_slot})

    def come(self, wish: SamplingParams, batch_slot: int) -> Sequence:
        prompt = [self.rng.randrange(VOCAB) for _ in range(self.rng.randint(1, 40))]
        sequence = sequence_of(prompt, wish, block_ids=[0])
        sequence.batch_slot = batch_slot
        self.with_batch_slot.append(sequence)
        return sequence

    def resume(self, sequence: Sequence, batch_slot: int | None) -> None:
        """Resume a preempted sequence under a new lease, without its pending tokens."""
        hold(sequence, [0])
        sequence.num_pending, sequence.batch_slot = 0, batch_slot
        self._under_way = [
            (
                [one for one in rows if one is not sequence],
                tokens[[one is not sequence for one in rows]],
            )
            for rows, tokens in self._under_way
        ]

    def step(self, *, ahead: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Launch a step; return its adjusted logits, the model's logits, and the expected
        logits.
        """
        rows = [one for one in self.with_batch_slot if self.rng.random() < 0.8] or [
            *self.with_batch_slot
        ]
        self.rng.shuffle(rows)
        values = np.random.default_rng(self.rng.randrange(10**6)).normal(size=(len(rows), VOCAB))
        logits = torch.from_numpy(4 * values).float()
        if any(one.num_pending and one not in rows for one in self.with_batch_slot):
            self.settle(0)
        inputs, given = torch.tensor([self.last(one) for one in rows]), logits.clone()
        expected = adjusted(logits, rows, inputs, (EOS,))
        launched = self.sampler.launch(logits, last_rows(rows), inputs)
        for one in rows:
            one.num_pending += 1
        self._under_way.append((rows, launched.tokens))
        self.settle(1 if ahead else 0)
        return logits, given, expected

    def last(self, sequence: Sequence) -> int:
        for rows, tokens in reversed(self._under_way):
            if sequence in rows:
                return int(tokens[rows.index(sequence)])
        return int(sequence.token_ids[-1])

    def settle(self, leaving: int) -> None:
        while len(self._under_way) > leaving:
            rows, tokens = self._under_way.pop(0)
            for one, token in zip(rows, tokens.tolist(), strict=True):
                one.append(token)
                one.num_pending -= 1


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_any_mix_of_requests_gives_the_bits_that_lists_give(seed: int, ahead: bool) -> None:
    rng = random.Random(seed)
    rows, num_adjusted, resumed = Rows(rng, new_sampler()), 0, 0
    for _ in range(60):
        if rows.free and rng.random() < 0.5:
            rows.come(any_wish(rng), rng.choice(rows.free))
        if rows.with_batch_slot and rng.random() < 0.2:
            one = rng.choice(rows.with_batch_slot)
            rows.resume(one, rng.choice([*rows.free, one.batch_slot]))
            resumed += 1
        over = [one for one in rows.with_batch_slot if one.length >= one.prompt_len + 12]
        if over:
            rows.settle(0)
            rows.with_batch_slot = [one for one in rows.with_batch_slot if one not in over]
        if rows.with_batch_slot:
            logits, given, expected = rows.step(ahead=ahead)
            assert torch.equal(logits, expected)
            num_adjusted += not torch.equal(given, expected)
    assert num_adjusted > 20
    assert resumed


class Noting(SlotTables):
    """Tables that count the requests added to them."""

    taken: list[int]

    def take(self, requests: SequenceOf[NewRequest], *args: object) -> None:
        self.taken.append(len(requests))
        super().take(requests, *args)  # type: ignore[arg-type]


def test_a_row_that_asks_for_much_brings_as_little_each_step_as_one_that_asks_for_little() -> None:
    sizes = []
    for biases in (1, VOCAB):
        tables = Noting(BATCH_SLOTS, VOCAB)
        tables.taken = []
        sampler = new_sampler(tables)
        wish = sampling(30, logit_bias=dict.fromkeys(range(biases), 1.0), frequency_penalty=1.0)
        sequence = sequence_of([3] * 20, wish, block_ids=[0])
        for _ in range(2):
            sampler.launch(torch.zeros((1, VOCAB)), last_rows([sequence]), torch.tensor([3]))
            sequence.append(5)
        assert tables.taken == [1, 0], "its lists are sent once"
        assert tables.biases.shape == (BATCH_SLOTS, biases)
        later = sampler.planner.plan(last_rows([sequence]))
        assert later.biases is not None
        sizes.append(later.biases.rows.nbytes + later.biases.batch_slots.nbytes)
        assert later.penalties is not None
        assert later.penalties.uncounted_rows.tolist() == [0]
    assert sizes[0] == sizes[1]


class NoRoom(RuntimeError):
    """The error of a device without free memory."""


class FullOnce(SlotTables):
    """Tables that count tokens, but find no free memory the first time."""

    is_full = True

    def count(self, *args: object) -> None:
        super().count(*args)  # type: ignore[arg-type]
        if self.is_full:
            self.is_full = False
            raise NoRoom


def test_a_launch_that_had_no_room_is_launched_again_as_if_for_the_first_time() -> None:
    wish = sampling(30, presence_penalty=0.5, repetition_penalty=1.5, logit_bias={4: 2.0})
    sequence = sequence_of([3, 4, 5], wish, block_ids=[0])
    sequence.append(7)
    logits = torch.randn((1, VOCAB), generator=torch.Generator().manual_seed(1))
    inputs = torch.tensor([7])
    expected = adjusted(logits, [sequence], inputs, (EOS,))
    sampler = new_sampler(FullOnce(BATCH_SLOTS, VOCAB))
    rows = last_rows([sequence])
    with pytest.raises(NoRoom):
        sampler.launch(logits.clone(), rows, inputs)
    sampler.launch(logits, rows, inputs)
    assert torch.equal(logits, expected)
    assert not torch.equal(logits, expected.roll(1))


def test_the_longest_list_so_far_decides_a_tables_width() -> None:
    tables = SlotTables(BATCH_SLOTS, VOCAB)
    sampler = replace(new_sampler(), tables=tables)
    for batch_slot, biases in enumerate((2, 9, 1)):
        wish = sampling(30, logit_bias={token: float(batch_slot + 1) for token in range(biases)})
        sequence = sequence_of([3], wish, block_ids=[0])
        sequence.batch_slot = batch_slot
        sampler.launch(torch.zeros((1, VOCAB)), last_rows([sequence]), torch.tensor([3]))
        assert tables.biases.shape == (BATCH_SLOTS, max(2, biases, tables.biases.shape[1]))
    assert tables.biases.shape[1] == 9
    assert tables.bias_ids[0].tolist() == [0, 1, *[0] * 7], "what was there is kept"
    assert tables.biases[0].tolist() == [1.0] * 9
    assert tables.bias_ids[2].tolist() == [0] * 9
