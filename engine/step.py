"""A step between its decision and its computation, as data.

The scheduler makes a `Step`. The runner computes it and returns one `Sampled` for each token that a
row samples. If rows have constraints, their masks follow while the device computes (`Forward`).
Nothing else passes between scheduler and runner, so a step can be encoded and computed in another
process. A runner keeps data between steps by batch slot: block tables, sampling parameters, the
tokens sampled last. A row has the changes of these data.

Elsewhere: the row's sequence (`scheduling.row_data`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from engine.link.event_messages import TokenLogprobs
from engine.link.messages import SamplingParams
from storage.move import Move, TokenCopy


class RowKind(Enum):
    """The kinds of a row's work."""

    PREFILL = "prefill"  # several tokens of a prompt, or of a restarted sequence
    DECODE = "decode"  # one token of a prompt or an answer

    # The last known token, and drafts to compare with samples. After rejected drafts, the row may
    # begin with tokens to compute again from the recurrent state.
    VERIFY = "verify"
    SCORE = "score"  # tokens of a prompt, each with the log-probability of the next


PREFILL, DECODE, VERIFY, SCORE = (
    RowKind  # until Python 3.12 `RowKind.DECODE` takes ten times as long
)


def kind_of(num_new: int) -> RowKind:
    """Return the kind of a row with `num_new` tokens."""
    return PREFILL if num_new > 1 else DECODE


class NewRequest(msgspec.Struct, frozen=True, array_like=True):
    """The sampling parameters of the sequence in a batch slot, sent once."""

    batch_slot: int
    sampling: SamplingParams
    prompt_len: int
    num_tokens: int  # known tokens: of the prompt, and generated before this batch slot was given
    prompt_ids: bytes  # prompt's tokens, int32; empty without penalties
    output_ids: bytes  # tokens generated before, int32; empty without penalties
    is_constrained: bool = False  # True if a mask limits the tokens that rows sample


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The tokens of one sequence, at positions `start` up to `end`, to compute in this step.

    Packed numbers are int32 in this machine's byte order.
    """

    lease_id: int  # different for each lease of the sequence
    batch_slot: int
    kind: RowKind
    start: int
    end: int  # first position after the row: its context length

    # True if a token is sampled after the row's last token. SCORE and VERIFY rows sample after each
    # token, except the first `num_again`.
    samples: bool
    is_pending: bool  # True if the host does not know the row's last token yet
    token_ids: bytes  # one token for each position; a pending token is 0
    first_block: int
    block_ids: bytes  # blocks of the batch slot that were not sent before; usually empty
    new: NewRequest | None = None  # set in the first sampling row of a lease

    # The token after each token in a SCORE row. In a row that samples nothing, the token after the
    # row's last token.
    next_ids: bytes = b""
    # The slots of recurrent states: `state_in` holds the state at `start`, `state_out` gets the
    # state at `end`. Slot 0 holds no state. Both are 0 without recurrent layers.
    state_in: int = 0
    state_out: int = 0
    embeds: bool = False  # True if the last token's hidden state is reported with the sample
    adapter: int = 0  # slot of the sequence's adapter; 0: no adapter
    adapter_start: int = 0  # position of the sequence's first token that the adapter computes

    # In a VERIFY row with a recurrent state: the position of the written state, and the number of
    # tokens that are computed again.
    state_end: int = 0
    num_again: int = 0
    candidates: bytes = b""  # tokens whose logits after the last token are reported with the sample

    # The model's positions of the tokens, if they are not `start` up to `end`.
    positions: bytes = b""
    # The blocks of the table at which another namespace begins. A draft head does not get the
    # first token of such a block as the next token. Other sequences share the keys before that
    # token.
    borders: bytes = b""

    @property
    def num_new(self) -> int:
        """The number of computed tokens."""
        return self.end - self.start

    @property
    def num_samples(self) -> int:
        """The number of sampled tokens."""
        if not self.samples:
            return 0
        return self.num_new - self.num_again if samples_each(self.kind) else 1


class Step(msgspec.Struct, frozen=True, array_like=True):
    """The work of one step: moves, then copies, then rows in the order of their kinds."""

    rows: tuple[Row, ...]
    moves: tuple[Move, ...] = ()
    copies: tuple[TokenCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        """The number of tokens that the step computes."""
        single = bisect_left(self.rows, True, key=_is_longer)
        return single + sum(row.num_new for row in self.rows[single:])


def samples_each(kind: RowKind) -> bool:
    """Return whether a row of this kind samples after each of its tokens."""
    return kind is VERIFY or kind is SCORE


def is_prefill(row: Row) -> bool:
    """Return whether the row computes a prompt's or restarted sequence's tokens."""
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

    `token_id` is None if the logits were not finite, or the row's constraint allows no token.
    """

    token_id: int | None
    logprobs: TokenLogprobs | None = None
    is_ruled_out: bool = False
    is_left_out: bool = False  # no sample, because the row's mask was late
    drafted: tuple[int, ...] = ()
    embedding: bytes = b""  # float32 hidden state of a row that embeds
    candidates: bytes = b""  # float32 logits of a row's candidates


# The mask of a row's allowed tokens, in ceil(vocabulary / 32) words. Token 0 is the first word's
# lowest bit.
Bitmask = npt.NDArray[np.int32]


class Launched(Protocol):
    """An interface to a launched step, which the device may still be computing."""

    def collect(self) -> list[Sampled]:
        """Wait for the step and return the samples, in row order."""
        ...


class Forward(Protocol):
    """An interface to a step whose forward pass is launched, and whose sampling waits for masks.

    No other step is launched before `sample` or `skip` is called.
    """

    def sample(self, allowed: Sequence[Bitmask | None]) -> Launched:
        """Launch the sampling of all rows, given a mask for each constrained row that samples.

        The masks are in row order, or None if the row's sample is not needed. If this raises, the
        caller calls `skip` next.
        """
        ...

    def skip(self) -> Launched:
        """Skip the sampling, which leaves the step without samples."""
        ...


class Runner(Protocol):
    """An interface that runs steps in order of launch. Only the runner holds tensors."""

    def launch(self, step: Step) -> Launched:
        """Start computing `step`: its moves, the forward pass, the sampling.

        The step before may still be running, and its sample for the batch slot is then the pending
        token. A launch that raises has no effect on later steps, if their rows send the failed
        step's new blocks and parameters again.
        """
        ...

    def launch_forward(self, step: Step) -> Forward:
        """Launch a step up to its sampling, which waits for the masks of constrained rows."""
        ...
