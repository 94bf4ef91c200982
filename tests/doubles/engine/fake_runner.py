"""A runner in which every sampled token depends on all the KV that its row should read.

The "KV" of a position is a number computed from the token and from the KV of the position before,
which is read back through the row's blocks. The next token is computed from all the KV up to the
row's end. So a block that was shared wrongly, copied wrongly, freed too early or written twice
changes the output; `expected_output` returns the right output.

The runner computes each step after encoding it to bytes and decoding the bytes.

Like a device, the runner computes in the order of launches, whatever the host does meanwhile. It
replaces a pending token by the token that it last sampled for the batch slot. Each step's samples
are returned once, when the step is collected, in the order of launches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

import msgspec
import numpy as np

from engine.execution.row_fields import samples_of
from engine.execution.verified_rows import row_by_token
from engine.link.messages import SamplingParams
from engine.scheduling.row_data import PLACES
from engine.sequences.sequence import Sequence
from engine.step import DECODE, SCORE, VERIFY, Bitmask, Row, Sampled, Step
from storage.move import Tier
from tests.doubles.engine.logprobs import pack_logprobs
from tests.doubles.row_owners import Running, owners_of

VOCAB_SIZE = 64
_MASK = (1 << 61) - 1


class KvCorrupt(AssertionError):
    """The error of a row that read or wrote a wrong place."""


def next_kv(previous: int, token_id: int) -> int:
    """Return the KV of a position, which depends on all tokens up to there."""
    return (previous * 1_000_003 + token_id * 7_919 + 12_345) % _MASK


def next_token(kv: Iterable[int], vocab_size: int = VOCAB_SIZE) -> int:
    """Return the next token, computed from every number of `kv`."""
    mixed = 0
    for value in kv:
        mixed = (mixed * 31 + value) % _MASK
    return (mixed >> 7) % vocab_size


def logprob_after(kv: Iterable[int]) -> float:
    """Return the next token's log-probability, computed from every number of `kv`."""
    return -0.5 - next_token(kv, 997) / 997


def allowed_next(token_id: int, mask: Bitmask | None) -> Sampled:
    """Return the first allowed token from `token_id` on. The search continues from 0 at the end."""
    if mask is None or not mask.any():
        return Sampled(None, is_ruled_out=True)
    ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    return Sampled(int(ids[np.searchsorted(ids, token_id) % len(ids)]))


def expected_output(
    prompt: Iterable[int], n: int, stops: Collection[int] = (), vocab_size: int = VOCAB_SIZE
) -> list[int]:
    """Return the right output after `prompt`: `n` tokens, or fewer that end with one of `stops`."""
    kv: list[int] = []
    for token_id in prompt:
        kv.append(next_kv(kv[-1] if kv else 0, token_id))
    output: list[int] = []
    while len(output) < n and not (output and output[-1] in stops):
        output.append(next_token(kv, vocab_size))
        kv.append(next_kv(kv[-1], output[-1]))
    return output


def prompt_where(token_id: int, position: int, n: int = 8) -> list[int]:
    """Return a prompt whose expected output has `token_id` first at `position`."""
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
class FakeForward:
    """A step whose KV has been written, and whose tokens have not been sampled yet."""

    runner: FakeRunner
    step: Step
    owners: list[Sequence]

    def sample(self, allowed: Iterable[Bitmask | None]) -> FakeLaunched:
        """Sample with these masks, or raise the next error in `raising_late`."""
        self.runner.events.append("sample")
        masks = iter(allowed)
        if self.runner.raising_late:
            self.runner.num_raised += 1
            raise self.runner.raising_late.pop(0)
        launched = self.runner.sampled_by(self.step, self.owners, masks)
        if any(True for _ in masks):
            raise KvCorrupt("more masks than rows with a constraint")
        self.runner.forward = None
        return launched

    def skip(self) -> FakeLaunched:
        self.runner.events.append("skip")
        self.runner.forward = None
        return self.runner.on_its_way([])


@dataclass
class FakeRunner:
    """A `Runner` over a dict of blocks, which records its steps."""

    block_size: int
    num_blocks: int
    vocab_size: int = VOCAB_SIZE
    not_finite: set[str] = field(default_factory=set)  # request ids whose logits are NaN
    raising: list[Exception] = field(default_factory=list)  # errors that the next launches raise
    # errors that the next samplings raise
    raising_late: list[Exception] = field(default_factory=list)
    takes: Callable[[Step], None] = lambda step: None  # advances a test's clock at a launch
    waits: Callable[[], None] = lambda: None  # advances the clock when a step is collected
    waits_for_loads: Callable[[], None] = lambda: None  # waits for promised loads at a launch
    has_waited: Callable[[], None] = lambda: None  # called once a step is collected
    num_raised: int = 0
    running: Running = list  # returns the running sequences, for `owners`
    steps: list[Step] = field(default_factory=list)
    owners: list[list[Sequence]] = field(default_factory=list)  # owners of each step's rows
    tables: dict[int, list[int]] = field(default_factory=dict)  # block ids by batch slot
    # sampling parameters by batch slot
    sampling: dict[int, SamplingParams] = field(default_factory=dict)
    tokens_computed: int = 0
    blocks: dict[int, list[int | None]] = field(default_factory=dict)
    last_tokens: dict[int, int] = field(default_factory=dict)  # last sampled tokens by batch slot
    constrained: set[int] = field(default_factory=set)  # batch slots with a constraint
    events: list[str] = field(default_factory=list)  # names of the runner's calls, in order
    forward: FakeForward | None = None  # the step whose tokens have not been sampled yet
    on_their_way: list[FakeLaunched] = field(default_factory=list)
    most_on_their_way: int = 0

    def launch(self, step: Step) -> FakeLaunched:
        self.events.append("launch")
        return self.sampled_by(*self._computed(step), iter(()))

    def launch_forward(self, step: Step) -> FakeForward:
        self.events.append("forward")
        self.forward = FakeForward(self, *self._computed(step))
        return self.forward

    def _computed(self, step: Step) -> tuple[Step, list[Sequence]]:
        """Write the KV of a step. Return the decoded step, and the sequences of its rows."""
        if self.forward is not None:
            raise KvCorrupt("a step is launched before the one it follows was sampled")
        owners = owners_of(step, self.running())
        step = msgspec.msgpack.decode(msgspec.msgpack.encode(step), type=Step)
        self._check_shape(step)
        for row in step.rows:
            self._take(row)
        self.waits_for_loads()
        size = self.block_size
        for move in step.moves:
            if (move.source_tier, move.target_tier) != (Tier.DEVICE, Tier.DEVICE):
                raise KvCorrupt(f"no tier for {move}")
            self.blocks[move.target] = list(self._block(move.source))
        for copy in step.copies:
            read, written = divmod(copy.source, size), divmod(copy.target, size)
            self._block(written[0])[written[1]] = self._block(read[0])[read[1]]
        self._check_single_writer(step)
        if self.raising:
            self._write(step.rows[0])  # a failing step may have done part of its work
            self.num_raised += 1
            raise self.raising.pop(0)
        for row in step.rows:
            self._write(row)
        self.steps.append(step)
        self.owners.append(owners)
        self.tokens_computed += step.num_tokens
        self.takes(step)
        return step, owners

    def sampled_by(
        self, step: Step, owners: list[Sequence], masks: Iterator[Bitmask | None]
    ) -> FakeLaunched:
        pairs = zip_longest(step.rows, owners)
        return self.on_its_way(
            [
                self._sample(one, owner, masks)
                for row, owner in pairs
                for one in samples_of(row_by_token(row) if row.kind is VERIFY else [row])
            ]
        )

    def on_its_way(self, sampled: list[Sampled]) -> FakeLaunched:
        launched = FakeLaunched(self, sampled)
        self.on_their_way.append(launched)
        self.most_on_their_way = max(self.most_on_their_way, len(self.on_their_way))
        return launched

    def _take(self, row: Row) -> None:
        """Store the blocks and parameters that the row gives its batch slot."""
        blocks = np.frombuffer(row.block_ids, np.int32).tolist()
        if blocks:
            table = self.tables.setdefault(row.batch_slot, [])
            if len(table) < row.first_block:
                raise KvCorrupt(
                    f"batch slot {row.batch_slot} misses blocks before {row.first_block}"
                )
            table[row.first_block :] = blocks
        if row.new is not None:
            self.sampling[row.batch_slot] = row.new.sampling
            (self.constrained.add if row.new.is_constrained else self.constrained.discard)(
                row.batch_slot
            )

    def _write(self, row: Row) -> None:
        for position in range(row.start, row.end):
            previous = self._read(row, position - 1) if position else 0
            block, offset = self._place(row, position)
            kv = next_kv(previous, self._token(row, position))
            self._block(block)[offset] = kv

    def _token(self, row: Row, position: int) -> int:
        if row.is_pending and position == row.end - 1:
            return self.last_tokens[row.batch_slot]
        return int(np.frombuffer(row.token_ids, np.int32)[position - row.start])

    def _sample(self, row: Row, owner: Sequence | None, masks: Iterator[Bitmask | None]) -> Sampled:
        sampled = self._next(row, owner)
        if row.batch_slot in self.constrained and sampled.token_id is not None:
            sampled = allowed_next(sampled.token_id, next(masks))
        self.last_tokens[row.batch_slot] = sampled.token_id or 0
        return sampled

    def _next(self, row: Row, owner: Sequence | None) -> Sampled:
        if owner is not None and owner.request_id in self.not_finite:
            return Sampled(None)
        kv = [self._read(row, position) for position in range(row.end)]
        token_id = next_token(kv, self.vocab_size)
        if row.kind is not SCORE and self.sampling[row.batch_slot].num_logprobs is None:
            return Sampled(token_id)
        logprob = logprob_after(kv)
        return Sampled(token_id, pack_logprobs(logprob, ((token_id, logprob),)))

    def _read(self, row: Row, position: int) -> int:
        block, offset = self._place(row, position)
        kv = self._block(block)[offset]
        if kv is None:
            raise KvCorrupt(f"batch slot {row.batch_slot} reads position {position}: never written")
        return kv

    def _place(self, row: Row, position: int) -> tuple[int, int]:
        block = self.tables[row.batch_slot][position // self.block_size]
        if not 0 <= block < self.num_blocks:
            raise KvCorrupt(f"block {block} is outside of the pool")
        return block, position % self.block_size

    def _block(self, block: int) -> list[int | None]:
        return self.blocks.setdefault(block, [None] * self.block_size)

    def _check_shape(self, step: Step) -> None:
        lengths = [row.num_new for row in step.rows]
        if not lengths or min(lengths) < 1:
            raise KvCorrupt(f"a step of {lengths} tokens")
        kinds = [PLACES[row.kind] for row in step.rows]
        if sorted(kinds) != kinds:
            raise KvCorrupt("rows are not in the order of their kinds")
        rows = [row for row in step.rows if row.kind is not SCORE]
        if [row.num_new > 1 for row in rows] != [row.kind is not DECODE for row in rows]:
            raise KvCorrupt("a row is not of the kind that it says")
        if any(len(row.token_ids) != 4 * row.num_new for row in step.rows):
            raise KvCorrupt("a row has not as many tokens as positions")

    def _check_single_writer(self, step: Step) -> None:
        """Check that no row reads or writes a block that another row of the step writes."""
        written: list[int] = []
        used: list[set[int]] = []
        batch_slots = [row.batch_slot for row in step.rows]
        if len(set(batch_slots)) < len(batch_slots):
            raise KvCorrupt(f"two rows on one of the batch slots {batch_slots}")
        for row in step.rows:
            places = {self._place(row, position)[0] for position in range(row.end)}
            first, last = row.start // self.block_size, (row.end - 1) // self.block_size
            written += self.tables[row.batch_slot][first : last + 1]
            used.append(places)
        for block in written:
            if sum(block in places for places in used) != 1:
                raise KvCorrupt(f"block {block} is written by one row and used by another")
