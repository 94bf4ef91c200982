"""Rows that sample after drafts get the same bits as one token at a time, whatever the drafts
are.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from msgspec import structs
from torch import Tensor

from engine.drafting.acceptance import MOST_DRAFTS
from engine.link.messages import SamplingParams
from engine.sampling.counted import CountedTokens
from engine.sampling.planner import Planner
from engine.sampling.sampler import Sampler
from engine.sampling.tables import SlotTables
from engine.scheduling.row_data import sent
from engine.scheduling.scheduled_rows import ScheduledRow
from engine.sequences.sequence import Sequence
from engine.step import VERIFY, Row, Sampled
from kernels.ops import torch_ops, triton_ops
from tests.doubles.kernels.interpreter import prepared_once  # noqa: F401 (a fixture)
from tests.engine.rigs.hand_driven import CountedSeeds, hold, sampling, sequence_of
from tests.engine.sampling.test_tables import any_wish

VOCAB, EOS, BATCH_SLOTS, FEW_DRAFTS = 50, 1, 4, 4
Divide = Callable[[Row], list[Row]]


def new_sampler(*, kernels: bool) -> Sampler:
    planner = Planner(VOCAB, (EOS,), CountedSeeds(), BATCH_SLOTS)
    ops = triton_ops() if kernels else torch_ops()
    return Sampler(planner, ops, SlotTables(BATCH_SLOTS, VOCAB))


def logits_after(tokens: list[int], seed: int) -> Tensor:
    """Return a model's logits after some tokens. Few tokens are likely, so many are repeated."""
    generator = torch.Generator().manual_seed(hash((seed, *tokens)) % 2**63)
    return 4 * torch.randn(VOCAB, generator=generator)


def by_end(row: Row) -> list[Row]:
    """Return one row for each token of `row`, which ends after that token."""
    ends = range(row.start + 1, row.end + 1)
    return [
        structs.replace(row, end=end, new=row.new if end == row.start + 1 else None) for end in ends
    ]


def by_token(row: Row) -> list[Row]:
    """Return a one-token row for each token of the row."""
    ids = [row.token_ids[4 * place :][:4] for place in range(row.num_new)]
    return [
        structs.replace(one, start=one.end - 1, token_ids=token)
        for one, token in zip(by_end(row), ids, strict=True)
    ]


@dataclass
class Story:
    """A sequence, and all tokens that were sampled for it."""

    sequence: Sequence
    seed: int
    said: list[Sampled] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return len(self.said) >= self.sequence.sampling.max_tokens

    def row(self, drafts: list[int]) -> Row:
        """Make a row of the sequence's last token and the draft tokens."""
        one = self.sequence
        one.tokens[one.num_tokens : one.num_tokens + len(drafts)] = drafts
        start, count = one.num_tokens - 1, 1 + len(drafts)
        return sent(ScheduledRow(one, start, count, start + count, VERIFY, True, one.lease_id))

    def logits(self, drafts: list[int]) -> Tensor:
        known = self.sequence.token_ids.tolist()
        rows = [logits_after(known + drafts[:count], self.seed) for count in range(len(drafts) + 1)]
        return torch.stack(rows)

    def take(self, values: list[Sampled], drafts: list[int]) -> None:
        """Append the sampled tokens as far as the drafts agree with them."""
        for value, draft in zip(values, [*drafts, None], strict=True):
            if self.is_over:
                return
            self.said.append(value)
            assert value.token_id is not None
            self.sequence.append(value.token_id)
            if value.token_id != draft:
                return


def stories(seed: int, most: int = 20) -> list[Story]:
    rng = random.Random(seed)
    made = []
    for batch_slot in range(BATCH_SLOTS):
        wish = structs.replace(any_wish(rng), max_tokens=most)
        if batch_slot == 0:
            wish = structs.replace(wish, presence_penalty=0.7, frequency_penalty=-0.3)
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))]
        sequence = sequence_of(prompt, wish, block_ids=[0])
        sequence.batch_slot = batch_slot
        made.append(Story(sequence, rng.randrange(10**6)))
    return made


def draft_of(rng: random.Random, story: Story, told: list[Sampled], most: int) -> list[int]:
    """Return random drafts, the right tokens, or the right tokens with one error."""
    place, left = len(story.said), len(told) - len(story.said) - 1
    count = rng.randint(0, min(most, max(left, 0)))
    right = [one.token_id or 0 for one in told[place : place + count]]
    match rng.choice(["random", "right", "right", "wrong"]):
        case "random":
            return [rng.randrange(VOCAB) for _ in range(count)]
        case "wrong" if count:
            right[rng.randrange(count)] = rng.randrange(VOCAB)
    return right


def tell(
    sampler: Sampler,
    made: list[Story],
    told: list[list[Sampled]],
    divide: Divide,
    seed: int,
    most: int = FEW_DRAFTS,
) -> int:
    """Step until all sequences are complete; return the number of steps."""
    rng, steps = random.Random(seed), 0
    while alive := [one for one in made if not one.is_over]:
        chosen = [one for one in alive if rng.random() < 0.8] or alive
        if rng.random() < 0.1:
            hold(chosen[0].sequence, [0])  # as after a preemption
        drafts = [draft_of(rng, one, told[made.index(one)], most) if told else [] for one in chosen]
        pairs = [*zip(chosen, drafts, strict=True)]
        rows = [each for one, draft in pairs for each in divide(one.row(draft))]
        logits = torch.cat([one.logits(draft) for one, draft in pairs])
        lasts = [(int(one.sequence.token_ids[-1]), *draft) for one, draft in pairs]
        inputs = torch.tensor([token for each in lasts for token in each])
        values = sampler.launch(logits, rows, inputs).collect()
        for one, draft in pairs:
            one.take(values[: len(draft) + 1], draft)
            values = values[len(draft) + 1 :]
        steps += 1
    return steps


@pytest.mark.parametrize("divide", [by_end, by_token])
@pytest.mark.parametrize("seed", range(8))
def test_any_drafts_leave_what_is_said_and_reported(seed: int, divide: Divide) -> None:
    plain, drafted = stories(seed), stories(seed)
    alone = tell(new_sampler(kernels=False), plain, [], divide, seed)
    told = [one.said for one in plain]
    steps = tell(new_sampler(kernels=False), drafted, told, divide, seed)
    assert [one.said for one in drafted] == told
    assert steps < alone, "some drafts were right"


@pytest.mark.parametrize("seed", range(2))
def test_the_longest_drafts_leave_what_is_said_and_reported(seed: int) -> None:
    plain, drafted = stories(seed, 90), stories(seed, 90)
    alone = tell(new_sampler(kernels=False), plain, [], by_token, seed)
    told = [one.said for one in plain]
    steps = tell(new_sampler(kernels=False), drafted, told, by_token, seed, MOST_DRAFTS)
    assert [one.said for one in drafted] == told
    assert 4 * steps < alone


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted")
@pytest.mark.usefixtures("prepared_once")
def test_the_kernels_say_the_same() -> None:
    plain, drafted = stories(0), stories(0)
    tell(new_sampler(kernels=False), plain, [], by_token, 0)
    told = [one.said for one in plain]
    tell(new_sampler(kernels=True), drafted, told, by_token, 0)
    assert [[value.token_id for value in one.said] for one in drafted] == [
        [value.token_id for value in said] for said in told
    ]


def test_without_penalties_other_tokens_are_said() -> None:
    """Sample without penalties (positive control): a token counted twice, or not at all, would
    change the answers.
    """
    plain, free = stories(3), stories(3)
    tell(new_sampler(kernels=False), plain, [], by_token, 3)
    for one in free:
        none = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
        one.sequence.sampling = structs.replace(one.sequence.sampling, **none)
    tell(new_sampler(kernels=False), free, [], by_token, 3)
    assert [one.said for one in free] != [one.said for one in plain]


def penalised_logits(sampler: Sampler, story: Story, drafts: list[int]) -> Tensor:
    """Return the penalised logits of a row with drafts, from logits that are all 1."""
    logits = torch.ones((len(drafts) + 1, VOCAB))
    last = int(story.sequence.token_ids[-1])
    sampler.launch(logits, by_token(story.row(drafts)), torch.tensor([last, *drafts]))
    return logits


def told_by(wish: SamplingParams) -> Story:
    sequence = sequence_of([3, 4], wish, block_ids=[0])
    return Story(sequence, 0)


def test_each_row_counts_the_drafts_before_it_and_none_that_were_rejected() -> None:
    story = told_by(sampling(20, frequency_penalty=0.25, num_logprobs=0))
    sampler = new_sampler(kernels=False)
    story.sequence.append(7)
    left = penalised_logits(sampler, story, [8, 8, 7])
    assert left[:, 7].tolist() == [0.75, 0.75, 0.75, 0.5]
    assert left[:, 8].tolist() == [1.0, 0.75, 0.5, 0.5]
    for token in (8, 9):  # the first draft is right, the others are wrong
        story.sequence.append(token)
    left = penalised_logits(sampler, story, [])
    assert left[0, [7, 8, 9]].tolist() == [0.75, 0.75, 0.75]
    # gives the same logits as if token 9 had not been drafted
    left = penalised_logits(sampler, story, [5])
    assert left[:, [5, 9]].tolist() == [[1.0, 0.75], [0.75, 0.75]]


def test_tokens_that_were_never_counted_are_noticed() -> None:
    counted = CountedTokens(BATCH_SLOTS)
    story = told_by(sampling(20, frequency_penalty=0.25))
    first = story.row([8])
    assert first.new is not None
    counted.restart([first.new])
    counted.launched(by_token(first))
    slots, ends = torch.tensor([0]).numpy(), torch.tensor([4]).numpy()
    assert [part.tolist() for part in counted.accepted(slots, ends)] == [[0], [8]]
    with pytest.raises(RuntimeError, match="1 tokens of batch slot 0 are missing"):
        counted.accepted(slots, ends + 1)
