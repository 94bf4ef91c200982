"""A step between its decision and its computation, as data.

The scheduler makes a `Step`; the runner computes it and returns one `Sampled` for each token that a
row samples. Masks follow once the device computes, where rows of the step have constraints
(`Forward`). Nothing else passes between them, so a step can be written to bytes
(`msgspec.msgpack.encode`), read back (`msgspec.msgpack.decode(data, type=Step)`) and computed in
another process. A runner keeps state between steps by batch slot: block tables, sampling
parameters, the tokens sampled last. A row has the changes of these.

Knows: rows, batch slots, moves, tokens. Does not know: why a row is in a step, whose it is
(`scheduling.row_data`), or tensors.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from engine.link.messages import SamplingParams, TokenLogprobs
from storage.move import Move, TokenCopy


class RowKind(Enum):
    """Kinds of work of a row."""

    PREFILL = "prefill"  # several tokens of a prompt, or of a restarted sequence
    DECODE = "decode"  # one token, of a prompt or an answer
    # The last known token, and given tokens to compare with samples; before these the tokens after
    # the sequence's state, where it has one and drafts were rejected.
    VERIFY = "verify"
    SCORE = "score"  # tokens of a prompt, each with the log-probability of the next


PREFILL, DECODE, VERIFY, SCORE = (
    RowKind  # until Python 3.12 `RowKind.DECODE` takes ten times as long
)


def kind_of(num_new: int) -> RowKind:
    """Return the kind of a row with `num_new` tokens."""
    return PREFILL if num_new > 1 else DECODE


class NewRequest(msgspec.Struct, frozen=True, array_like=True):
    """Sampling parameters of the sequence in a batch slot, sent once."""

    batch_slot: int
    sampling: SamplingParams
    prompt_len: int
    num_tokens: int  # known tokens: the prompt's, and the tokens generated before this batch slot
    prompt_ids: bytes  # int32, as in rows; empty without penalties
    output_ids: bytes  # the tokens generated before
    is_constrained: bool = False  # True if a mask limits its rows' sampled tokens


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens of one sequence, at positions `start` up to `end`, to be computed in this step.

    Numbers that are packed are int32 in the order of this machine.
    """

    lease_id: int  # lease of the blocks; a preempted sequence comes back with another
    batch_slot: int
    kind: RowKind
    start: int
    end: int  # first position after the row: its context length
    # True if a token is sampled after the last token, or after each (VERIFY but for `num_again`,
    # SCORE).
    samples: bool
    is_pending: bool  # True if the host does not know its last token yet
    token_ids: bytes  # one for each position; a pending token is 0
    first_block: int  # position of the first of `block_ids`; 0: `block_ids` are all blocks
    block_ids: bytes  # blocks of the batch slot that were not sent before; mostly empty
    new: NewRequest | None = None  # set in the first sampling row of a lease
    # The token after each token of a scored row, whose samples are dropped; or after the last one
    # of a row that samples nothing.
    next_ids: bytes = b""
    # State slots of a model with recurrent layers: the state at `start` is read from one, the state
    # at `end` is written to another. Slot 0 is nobody's: of rows from the first token on, nothing
    # is read. Both are 0 without recurrent layers.
    state_in: int = 0
    state_out: int = 0
    embeds: bool = False  # True if the hidden state of its last token is reported with its sample
    adapter: int = 0  # slot of the sequence's adapter; 0: none
    adapter_start: int = 0  # position of the sequence's first token that the adapter computes
    # Of a VERIFY row with a state: the position whose state is written, and the number of leading
    # tokens that an earlier row has computed already.
    state_end: int = 0
    num_again: int = 0
    candidates: bytes = b""  # tokens whose logits after its last token are reported with its sample
    # Positions of the tokens for the model, where they are not `start` up to `end`: those count
    # the keys before, of which some are of modules.
    positions: bytes = b""
    # Blocks of its table at which another namespace begins: the token after the one before is told
    # to no head that drafts, since the keys that it keeps there are others' too.
    borders: bytes = b""

    @property
    def num_new(self) -> int:
        """Number of computed tokens."""
        return self.end - self.start

    @property
    def num_samples(self) -> int:
        """Number of sampled tokens."""
        if not self.samples:
            return 0
        return self.num_new - self.num_again if samples_each(self.kind) else 1


class Step(msgspec.Struct, frozen=True, array_like=True):
    """Work of one step: moves, then copies, then the rows: decodes, VERIFY, others, SCORE."""

    rows: tuple[Row, ...]
    moves: tuple[Move, ...] = ()
    copies: tuple[TokenCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the step computes."""
        single = bisect_left(self.rows, True, key=_is_longer)
        return single + sum(row.num_new for row in self.rows[single:])


def samples_each(kind: RowKind) -> bool:
    """Return whether a row of this kind samples after each of its tokens."""
    return kind is VERIFY or kind is SCORE


def is_prefill(row: Row) -> bool:
    """Return whether a row is after the decodes: tokens of a prompt, or of a restarted sequence."""
    return row.kind is PREFILL or row.kind is SCORE


def count_decodes(rows: Sequence[Row]) -> int:
    """Count the decode and VERIFY rows at the beginning of the rows."""
    return bisect_left(rows, True, key=is_prefill)


def has_drafts(rows: Sequence[Row]) -> bool:
    """Return whether a step's rows include VERIFY rows, which are the last of its decodes."""
    decodes = count_decodes(rows)
    return decodes > 0 and rows[decodes - 1].kind is VERIFY


def _is_longer(row: Row) -> bool:
    return row.kind is not DECODE


class Sampled(NamedTuple):
    """A token that a row samples.

    `token_id` is None where the logits were not finite, or the row's constraint allows no token.
    """

    token_id: int | None
    logprobs: TokenLogprobs | None = None
    is_ruled_out: bool = False  # the constraint allows no token
    is_left_out: bool = False  # no sample: the row's mask was late
    drafted: tuple[int, ...] = ()  # tokens after it, drafted by the model's own head
    embedding: bytes = b""  # float32 hidden state of a row that embeds
    candidates: bytes = b""  # float32 logits of a row's candidates


# Mask of a row's allowed tokens: ceil(vocabulary / 32) words, from the lowest bit of the first on.
Bitmask = npt.NDArray[np.int32]


class Launched(Protocol):
    """A launched step; the device may still be computing it."""

    def collect(self) -> list[Sampled]:
        """Wait for the step and return the samples, in row order."""
        ...


class Forward(Protocol):
    """A step whose forward pass is launched, and whose sampling waits for masks.

    No other step is launched before one of the two was called.
    """

    def sample(self, allowed: Sequence[Bitmask | None]) -> Launched:
        """Launch the sampling of all rows, given a mask for each constrained row that samples.

        In row order; None where nobody waits for what the row samples. Where it raises, `skip`
        follows.
        """
        ...

    def skip(self) -> Launched:
        """Skip the sampling; the step then has no samples."""
        ...


class Runner(Protocol):
    """Runner of steps in order of launch; only the runner holds tensors."""

    def launch(self, step: Step) -> Launched:
        """Start computing `step`: its moves, the forward pass, the sampling.

        The step before may still be running; a pending token is the one that it samples for the
        row's batch slot. A launch that raises leaves no effect that a later step depends on, if
        what was new in its rows is sent again.
        """
        ...

    def launch_forward(self, step: Step) -> Forward:
        """Launch a step up to its sampling, because rows of constrained sequences sample in it."""
        ...
