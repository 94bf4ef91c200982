"""A runner whose every token depends on all the KV it should have read, block by block.

The "KV" of a position is a chain: a number made from the KV before it, as read back through the
row's blocks, and the token. The next token is made from all the KV up to the row's end. So a
block that was shared wrongly, copied wrongly, freed too early or written by two changes what
comes out, and `expected_output` says what should have.

Like a device it does its work in the order of the launches, whatever the host does meanwhile,
and feeds a pending token from what it sampled last for the seat. What it sampled is told when
it is collected, in that order and once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from engine.messages import TokenLogprobs
from engine.sequence import Sequence
from engine.step import Row, Sampled, Step
from storage.move import Tier

VOCAB_SIZE = 64
_MASK = (1 << 61) - 1


class KvCorrupt(AssertionError):
    """The runner read or wrote where it should not."""


def next_kv(previous: int, token_id: int) -> int:
    """The KV of a position: depends on everything before it."""
    return (previous * 1_000_003 + token_id * 7_919 + 12_345) % _MASK


def next_token(kv: Iterable[int], vocab_size: int = VOCAB_SIZE) -> int:
    """The token that follows KV: depends on every number of it."""
    mixed = 0
    for value in kv:
        mixed = (mixed * 31 + value) % _MASK
    return (mixed >> 7) % vocab_size


def expected_output(
    prompt: Iterable[int], n: int, stops: Collection[int] = (), vocab_size: int = VOCAB_SIZE
) -> list[int]:
    """What follows `prompt`: `n` tokens, or fewer up to and with the first of `stops`."""
    kv: list[int] = []
    for token_id in prompt:
        kv.append(next_kv(kv[-1] if kv else 0, token_id))
    output: list[int] = []
    while len(output) < n and not (output and output[-1] in stops):
        output.append(next_token(kv, vocab_size))
        kv.append(next_kv(kv[-1], output[-1]))
    return output


def prompt_where(token_id: int, position: int, n: int = 8) -> list[int]:
    """A prompt whose expected output has `token_id` at `position`, and not before."""
    for seed in range(100_000):
        prompt = [seed % VOCAB_SIZE, seed // VOCAB_SIZE % VOCAB_SIZE, seed // VOCAB_SIZE**2]
        output = expected_output(prompt, n)
        if token_id in output and output.index(token_id) == position:
            return prompt
    raise AssertionError("no such prompt")


@dataclass
class FakeLaunched:
    runner: FakeRunner
    sampled: list[Sampled]

    def collect(self) -> list[Sampled]:
        if self.runner.on_their_way.pop(0) is not self:
            raise KvCorrupt("a step is collected twice, or before the one it followed")
        self.runner.waits()
        self.runner.has_waited()
        return self.sampled


@dataclass
class FakeRunner:
    """A `Runner` over a dict of blocks. Keeps the steps it was given."""

    block_size: int
    num_blocks: int
    vocab_size: int = VOCAB_SIZE
    not_finite: set[str] = field(default_factory=set)  # request ids whose logits are NaN
    raising: list[Exception] = field(default_factory=list)  # raised by the next launches
    takes: Callable[[Step], None] = lambda step: None  # moves a test's clock on, at a launch
    waits: Callable[[], None] = lambda: None  # the same, when a step is collected
    waits_for_loads: Callable[[], None] = lambda: None  # those promised to what is launched
    has_waited: Callable[[], None] = lambda: None  # a step that waited for them is over
    num_raised: int = 0
    steps: list[Step] = field(default_factory=list)
    tokens_computed: int = 0
    blocks: dict[int, list[int | None]] = field(default_factory=dict)
    last_tokens: dict[int, int] = field(default_factory=dict)  # by seat
    on_their_way: list[FakeLaunched] = field(default_factory=list)
    most_on_their_way: int = 0

    def launch(self, step: Step) -> FakeLaunched:
        self._check_shape(step)
        self.waits_for_loads()
        for move in step.moves:
            if (move.source_tier, move.target_tier) != (Tier.DEVICE, Tier.DEVICE):
                raise KvCorrupt(f"no tier for {move}")
            self.blocks[move.target] = list(self._block(move.source))
        self._check_single_writer(step)
        if self.raising:
            self._write(step.rows[0])  # a step that breaks may have done a part of its work
            self.num_raised += 1
            raise self.raising.pop(0)
        for row in step.rows:
            self._write(row)
        self.steps.append(step)
        self.tokens_computed += step.num_tokens
        launched = FakeLaunched(self, [self._sample(row) for row in step.rows if row.samples])
        self.on_their_way.append(launched)
        self.most_on_their_way = max(self.most_on_their_way, len(self.on_their_way))
        self.takes(step)
        return launched

    def _write(self, row: Row) -> None:
        for position in range(row.start, row.end):
            previous = self._read(row.sequence, position - 1) if position else 0
            block, offset = self._place(row.sequence, position)
            kv = next_kv(previous, self._token(row.sequence, position))
            self._block(block)[offset] = kv

    def _token(self, sequence: Sequence, position: int) -> int:
        if position < sequence.num_tokens:
            return int(sequence.tokens[position])
        if position >= sequence.length:
            raise KvCorrupt(f"{sequence.request_id} has no token {position}")
        return self.last_tokens[self._seat(sequence)]

    def _seat(self, sequence: Sequence) -> int:
        if sequence.seat is None:
            raise KvCorrupt(f"{sequence.request_id} runs without a seat")
        return sequence.seat

    def _sample(self, row: Row) -> Sampled:
        sampled = self._next(row)
        self.last_tokens[self._seat(row.sequence)] = sampled.token_id or 0
        return sampled

    def _next(self, row: Row) -> Sampled:
        if row.sequence.request_id in self.not_finite:
            return Sampled(None)
        kv = [self._read(row.sequence, position) for position in range(row.end)]
        token_id = next_token(kv, self.vocab_size)
        if row.sequence.sampling.num_logprobs is None:
            return Sampled(token_id)
        return Sampled(token_id, TokenLogprobs(-0.5, ((token_id, -0.5),)))

    def _read(self, sequence: Sequence, position: int) -> int:
        block, offset = self._place(sequence, position)
        kv = self._block(block)[offset]
        if kv is None:
            raise KvCorrupt(f"{sequence.request_id} reads position {position}: never written")
        return kv

    def _place(self, sequence: Sequence, position: int) -> tuple[int, int]:
        if sequence.lease is None or sequence.lease.released:
            raise KvCorrupt(f"{sequence.request_id} runs without a lease")
        block = int(sequence.lease.blocks[position // self.block_size])
        if not 0 <= block < self.num_blocks:
            raise KvCorrupt(f"block {block} is outside of the pool")
        return block, position % self.block_size

    def _block(self, block: int) -> list[int | None]:
        return self.blocks.setdefault(block, [None] * self.block_size)

    def _check_shape(self, step: Step) -> None:
        lengths = [row.num_new for row in step.rows]
        if not lengths or min(lengths) < 1:
            raise KvCorrupt(f"a step of {lengths} tokens")
        if sorted(lengths, key=lambda length: length > 1) != lengths:
            raise KvCorrupt("rows with one token come first")

    def _check_single_writer(self, step: Step) -> None:
        """No block that one row writes may be read or written by another row of the step."""
        written: list[int] = []
        used: list[set[int]] = []
        seats = [self._seat(row.sequence) for row in step.rows]
        if len(set(seats)) < len(seats):
            raise KvCorrupt(f"two rows on one of the seats {seats}")
        for row in step.rows:
            places = {self._place(row.sequence, position)[0] for position in range(row.end)}
            first = row.start // self.block_size
            lease = row.sequence.lease
            blocks = np.zeros(0, np.int32) if lease is None else lease.blocks
            last = (row.end - 1) // self.block_size
            written += [int(block) for block in blocks[first : last + 1]]
            used.append(places)
        for block in written:
            if sum(block in places for places in used) != 1:
                raise KvCorrupt(f"block {block} is written by one row and used by another")
