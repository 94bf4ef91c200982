"""One sequence on its way through the engine: its tokens, its lease, how far it is computed.

State has one owner, the engine's thread. There is no prefill phase and no decode phase:

    |  prompt  |  output  | pending |
    0                 num_tokens  length

`num_tokens` are known. A token that a step on its way will sample is pending: it is counted in
`length`, but the host does not know its value before the step is settled, and the device feeds it
to the next step by itself. The KV of the first `num_computed` tokens is in the pool, or will be
when the launched steps are done.

Knows: token ids and counts. Does not know: the queue, the pool, or the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.messages import Priority, SamplingParams
from prefix_cache.lease import Lease
from prefix_cache.namespace import NamespacePath
from prefix_cache.recompute import Loads

TokenIds = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Found:
    """Tokens of a prompt that were in the cache, by the tier they came from.

    Those already on their way to the device for another sequence count as `device`.
    """

    device: int = 0
    host: int = 0
    disk: int = 0

    @property
    def total(self) -> int:
        """Tokens that were not computed."""
        return self.device + self.host + self.disk

    def __add__(self, other: Found) -> Found:
        return Found(self.device + other.device, self.host + other.host, self.disk + other.disk)


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's sequence; identity is the object itself."""

    request_id: str
    client: bytes  # which gateway's connection to answer on
    flow: str
    weight: float
    path: NamespacePath
    block_keys: bytes
    sampling: SamplingParams
    prompt_len: int
    arrived: float  # seconds, monotonic
    tokens: TokenIds  # capacity prompt_len + max_tokens; the first num_tokens are valid
    num_tokens: int
    writer: str = ""  # the label of what it writes into the cache
    priority: Priority = "interactive"
    use_cache: bool = True
    num_computed: int = 0
    loads: Loads = "auto"  # whether lower blocks are loaded for it
    found: Found = Found()  # of the prompt, in the cache at its first start
    num_pending: int = 0  # tokens that steps on their way will sample
    lease: Lease | None = None  # None while waiting
    seat: int | None = None  # its place among the running; None while waiting or loading
    leased: float = 0.0  # when it was last given its blocks
    admitted: float | None = None  # when it first started
    match_seconds: float = 0.0  # what finding its prefix took at the first admission
    load_seconds: float = 0.0  # what it waited for blocks from slower tiers
    engine_seconds: float = 0.0  # its share of the steps that computed its tokens
    num_preemptions: int = 0
    held_since: float | None = None  # when single flight first left it waiting
    has_sent_tokens: bool = False
    written_tokens: int = 0  # put into the cache under its label by the leases it has given back
    first_reads: dict[str, int] = field(default_factory=dict)  # tokens by label (`messages`)

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that the cache had at the first start."""
        return self.found.total

    @property
    def is_loading(self) -> bool:
        """Whether it holds its blocks and has not started yet: some are on their way."""
        return self.lease is not None and self.seat is None

    @property
    def length(self) -> int:
        """Tokens in all, the pending ones included."""
        return self.num_tokens + self.num_pending

    @property
    def is_full(self) -> bool:
        """Whether its last token is known or pending."""
        return self.num_tokens + self.num_pending >= len(self.tokens)

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return self.num_tokens - self.prompt_len

    @property
    def token_ids(self) -> TokenIds:
        """A view of all known tokens, prompt and output."""
        return self.tokens[: self.num_tokens]

    @property
    def output_ids(self) -> TokenIds:
        """A view of the generated tokens."""
        return self.tokens[self.prompt_len : self.num_tokens]

    def append(self, token_id: int) -> None:
        """Add one generated token."""
        self.tokens[self.num_tokens] = token_id
        self.num_tokens += 1
