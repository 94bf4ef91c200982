"""A step as a data record, which the scheduler makes and the runner computes.

The scheduler makes a `Step`. The runner computes it and returns one `Sampled` for each token that a
row samples. If rows have constraints, their masks are passed later, while the device computes
(`Forward`). Nothing else passes between scheduler and runner, so a step can be encoded and computed
in another process. Between steps, a runner keeps data for each batch slot: block table, sampling
parameters, the token sampled last. A row contains only changes of these data.

Elsewhere: the making of rows from sequences (`scheduling.row_data`).
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
    """The kinds of rows."""

    PREFILL = "prefill"  # several tokens of a prompt, or of a restarted sequence
    DECODE = "decode"  # one token of a prompt or an answer

    # The last known token, and drafts that are compared with samples. After rejected drafts, the
    # row may begin with tokens that must be computed again from the recurrent state.
    VERIFY = "verify"
    SCORE = "score"  # tokens of a prompt; each reports the log probability of the next token


PREFILL, DECODE, VERIFY, SCORE = (
    RowKind  # module names, because `RowKind.DECODE` takes ten times as long until Python 3.12
)


def kind_of(num_new: int) -> RowKind:
    """Return the kind of a row with `num_new` tokens."""
    return PREFILL if num_new > 1 else DECODE


class NewRequest(msgspec.Struct, frozen=True, array_like=True):
    """The sampling parameters of a sequence, sent once when it gets its batch slot."""

    batch_slot: int
    sampling: SamplingParams
    prompt_len: int
    # Number of known tokens: the prompt's, and those generated before it got the slot.
    num_tokens: int
    prompt_ids: bytes  # prompt's tokens, int32; empty without penalties
    output_ids: bytes  # tokens generated before it got the slot, int32; empty without penalties
    is_constrained: bool = False  # True if a mask limits the tokens that rows sample


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The tokens of one sequence to compute in this step: positions `start` up to `end`.

    Packed numbers are int32 in this machine's byte order.
    """

    lease_id: int  # different for each lease of the sequence
    batch_slot: int
    kind: RowKind
    start: int
    end: int  # position after the row's last token, which is its context length

    # True if a token is sampled after the row's last token. SCORE and VERIFY rows sample after each
    # token, except the first `num_again`.
    samples: bool
    is_pending: bool  # True if the host does not know the row's last token yet
    token_ids: bytes  # one token for each position; a pending token is 0
    first_block: int
    block_ids: bytes  # blocks of the sequence that were not sent before; usually empty
    new: NewRequest | None = None  # set in the first row of a lease that samples

    # The token after each token in a SCORE row. In a row that samples nothing, the token after the
    # row's last token.
    next_ids: bytes = b""
    # The slots of recurrent states: `state_in` has the state at `start`, and `state_out` gets the
    # state at `end`. Slot 0 means no state. Both are 0 without recurrent layers.
    state_in: int = 0
    state_out: int = 0
    embeds: bool = False  # True if the last token's hidden state is reported with the sample
    adapter: int = 0  # slot of the sequence's adapter; 0: no adapter
    adapter_start: int = 0  # first position that is computed with the adapter

    # In a VERIFY row with a recurrent state: the position at which the state is written, and the
    # number of leading tokens that are computed again.
    state_end: int = 0
    num_again: int = 0
    # Tokens whose logits, after the row's last token, are reported with the sample.
    candidates: bytes = b""

    # The positions of the tokens for the model, if they are not `start` up to `end`.
    positions: bytes = b""
    # The indices of the blocks at which another namespace begins. At the
    # token before such a block, a draft head must not read the block's first token as the next
    # token, because other sequences share the keys of that position.
    borders: bytes = b""

    @property
    def num_new(self) -> int:
        """The number of tokens that the row computes."""
        return self.end - self.start

    @property
    def num_samples(self) -> int:
        """The number of sampled tokens."""
        if not self.samples:
            return 0
        return self.num_new - self.num_again if samples_each(self.kind) else 1


class Step(msgspec.Struct, frozen=True, array_like=True):
    """The work of one step: first moves, then copies of tokens, then rows, ordered by kind."""

    rows: tuple[Row, ...]
    moves: tuple[Move, ...] = ()
    copies: tuple[TokenCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        """The number of tokens that the step computes."""
        single = bisect_left(self.rows, True, key=_is_longer)
        return single + sum(row.num_new for row in self.rows[single:])


def samples_each(kind: RowKind) -> bool:
    """Return whether rows of this kind sample after each of their tokens."""
    return kind is VERIFY or kind is SCORE


def is_prefill(row: Row) -> bool:
    """Return whether the row computes tokens of a prompt or of a restarted sequence."""
    return row.kind is PREFILL or row.kind is SCORE


def count_decodes(rows: Sequence[Row]) -> int:
    """Count the decode and VERIFY rows, which come first in `rows`."""
    return bisect_left(rows, True, key=is_prefill)


def has_drafts(rows: Sequence[Row]) -> bool:
    """Return whether `rows` include VERIFY rows. They come after all decode rows."""
    decodes = count_decodes(rows)
    return decodes > 0 and rows[decodes - 1].kind is VERIFY


def _is_longer(row: Row) -> bool:
    return row.kind is not DECODE


class Sampled(NamedTuple):
    """A token that a row has sampled.

    `token_id` is None if the logits were not finite, or if the row's options allow no token.
    """

    token_id: int | None
    logprobs: TokenLogprobs | None = None
    is_ruled_out: bool = False
    is_left_out: bool = False  # True: no sample, because the row's mask was late
    drafted: tuple[int, ...] = ()
    embedding: bytes = b""  # float32 hidden state, if the row has `embeds`
    candidates: bytes = b""  # float32 logits of the row's candidates


# The mask of the tokens that a row may sample: ceil(vocabulary / 32) words. Token 0 is the lowest
# bit of the first word.
Bitmask = npt.NDArray[np.int32]


class Launched(Protocol):
    """An interface to a launched step. The device may still be computing it."""

    def collect(self) -> list[Sampled]:
        """Wait for the step and return the samples, in row order."""
        ...


class Forward(Protocol):
    """An interface to a step whose forward pass is launched, and whose sampling waits for masks.

    No other step is launched before `sample` or `skip` is called.
    """

    def sample(self, allowed: Sequence[Bitmask | None]) -> Launched:
        """Launch the sampling of all rows. `allowed` has a mask for each sample with a constraint.

        The masks are in row order. A mask is None if its sample is not needed. If this raises an
        error, the caller must call `skip` next.
        """
        ...

    def skip(self) -> Launched:
        """Skip the sampling. The step has no samples then."""
        ...


class Runner(Protocol):
    """An interface that runs steps in the order of launches. Only a runner has tensors."""

    def launch(self, step: Step) -> Launched:
        """Start computing `step`: its moves, the forward pass, the sampling.

        The step before may still be running. Its sample for the same batch slot is then the pending
        token of a row. If a launch raises an error, later steps are not affected, provided that
        their rows send the new blocks and parameters of the failed step again.
        """
        ...

    def launch_forward(self, step: Step) -> Forward:
        """Launch a step without its sampling, which must wait for masks."""
        ...
