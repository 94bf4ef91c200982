"""The boundary record between deciding a step and computing it: data, and nothing else.

The scheduler makes a `Step`; the runner computes it and returns one `Sampled` for each token that a
row samples. Masks follow once the device computes, where rows of the step have constraints
(`Forward`). Nothing else passes between them, so a step can be written to bytes
(`msgspec.msgpack.encode`), read back (`msgspec.msgpack.decode(data, type=Step)`) and computed in
another process. A runner keeps state between steps by batch slot: block tables, sampling
parameters, the tokens sampled last. A row has the changes of these.

Knows: rows, batch slots, moves, tokens. Does not know: why a row is in a step, whose it is
(`scheduling.step_builder`), or tensors.
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
from storage.move import Move


class RowKind(Enum):
    """Kinds of work of a row."""

    PREFILL = "prefill"  # several tokens of a prompt, or of a sequence that starts anew
    DECODE = "decode"  # one token, of a prompt or an answer
    VERIFY = "verify"  # the last known token, and given ones to be compared with samples
    SCORE = "score"  # tokens of a prompt, each of which tells how likely the next one was


PREFILL, DECODE, VERIFY, SCORE = (
    RowKind  # until Python 3.12 `RowKind.DECODE` takes ten times as long
)


def kind_of(num_new: int) -> RowKind:
    """Return the kind of a row with `num_new` tokens; decided here alone."""
    return PREFILL if num_new > 1 else DECODE


class NewRequest(msgspec.Struct, frozen=True, array_like=True):
    """Parameters that sampling needs once of the sequence in a batch slot."""

    batch_slot: int
    sampling: SamplingParams
    prompt_len: int
    num_tokens: int  # known ones, the prompt's and those generated before it got the batch slot
    prompt_ids: bytes  # int32, as of rows; empty where no penalty counts them
    output_ids: bytes  # the same of what was generated before
    is_constrained: bool = False  # a mask says which tokens its rows may sample


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens of one sequence, at positions `start` up to `end`, to be computed in this step.

    Numbers that are packed are int32 in the order of this machine.
    """

    lease_id: int  # whose blocks; a sequence that was preempted comes back with another
    batch_slot: int
    kind: RowKind
    start: int
    end: int  # first position after the row: its context length
    samples: bool  # the token after its last is sampled, or after each that it verifies or scores
    is_pending: bool  # the value of its last token is not known on the host yet
    token_ids: bytes  # one for each position; a pending one is 0
    first_block: int  # the position of the first of `block_ids`; 0: they are all there are
    block_ids: bytes  # that the batch slot has got since they were last sent; mostly none
    new: NewRequest | None = None  # with the first row of a lease that samples
    next_ids: bytes = b""  # of a row that scores: the token after each; what it samples is dropped

    @property
    def num_new(self) -> int:
        """Number of tokens that are computed."""
        return self.end - self.start

    @property
    def num_samples(self) -> int:
        """Number of tokens that are sampled."""
        return self.num_new if samples_each(self.kind) else int(self.samples)


class Step(msgspec.Struct, frozen=True, array_like=True):
    """Work of one step: block copies first, then the rows, the decodes first."""

    rows: tuple[Row, ...]
    moves: tuple[Move, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed by the step."""
        decodes = count_decodes(self.rows)
        return decodes + sum(row.num_new for row in self.rows[decodes:])


def samples_each(kind: RowKind) -> bool:
    """Return whether a row of this kind samples after each of its tokens."""
    return kind is VERIFY or kind is SCORE


def is_prefill(row: Row) -> bool:
    """Return whether a row lies after the decodes."""
    return row.kind is not DECODE


def count_decodes(rows: Sequence[Row]) -> int:
    """Count the leading rows that are decodes."""
    return bisect_left(rows, True, key=is_prefill)


class Sampled(NamedTuple):
    """A token that a row samples.

    `token_id` is None where the logits were not finite, or the row's constraint allows no token.
    """

    token_id: int | None
    logprobs: TokenLogprobs | None = None
    is_ruled_out: bool = False  # the constraint allows none
    is_left_out: bool = False  # nothing was sampled for the row: it did not have its mask in time


# Which tokens a row may sample: ceil(vocabulary / 32) words, from the lowest bit of the first on.
Bitmask = npt.NDArray[np.int32]


class Launched(Protocol):
    """A launched step; the device may still be computing it."""

    def collect(self) -> list[Sampled]:
        """Wait for the step and return what each row samples, in row order."""
        ...


class Forward(Protocol):
    """A step whose forward pass is launched, and whose sampling waits for masks.

    No other step is launched before one of the two was called.
    """

    def sample(self, allowed: Sequence[Bitmask | None]) -> Launched:
        """Launch the sampling of all rows, given a mask for each that samples and is constrained.

        In row order; None where nobody waits for what the row samples. Where it raises, `skip`
        follows.
        """
        ...

    def skip(self) -> Launched:
        """Skip the sampling; the step then yields nothing."""
        ...


class Runner(Protocol):
    """Runner of steps in the order of launches; alone in the engine it holds tensors."""

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
