"""One sequence in the engine: its tokens, its lease, how far it is computed.

State has one owner, the engine's thread. There is no prefill phase and no decode phase:

    |  prompt  |  output  | pending |
    0                 num_tokens  length

`num_tokens` are known. A token that a launched step will sample is pending: it is counted in
`length`, but the host does not know its value before the step is settled, and the device feeds it
to the next step by itself. The KV of the first `num_computed` tokens is in the pool, or will be
when the launched steps are done.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.link.messages import (
    FetchSource,
    Loads,
    Mark,
    Priority,
    SamplingParams,
    TokenLogprobs,
)
from engine.link.stats_messages import TierTokens
from engine.sequences.token_constraint import TokenConstraint
from prefix_cache.hashing import TokenIds as TokenIds
from prefix_cache.leases.lease import Lease
from prefix_cache.namespace import NamespacePath
from prefix_cache.tree.match import PrefixMatch


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's sequence; identity is the object itself."""

    request_id: str
    client: bytes  # connection of the gateway to answer
    flow: str
    weight: float
    path: NamespacePath
    block_keys: bytes
    sampling: SamplingParams
    prompt_len: int
    arrived: float  # seconds, monotonic
    tokens: TokenIds  # capacity prompt_len + max(max_tokens, 1); the first num_tokens are valid
    num_tokens: int
    writer: str = ""  # the label of what it writes into the cache
    priority: Priority = "interactive"
    use_cache: bool = True
    is_counted: bool = True  # True if its prompt counts as looked up
    num_computed: int = 0
    prompt_end: int = 0  # tokens of the prompt up to the last one that a settled step has computed
    loads: Loads = "auto"  # whether lower blocks are loaded for it
    constraint: TokenConstraint | None = None  # has been given every generated token
    # Tokens of the prompt that the cache had at its first start.
    found: TierTokens = field(default_factory=TierTokens)
    num_pending: int = 0  # tokens that launched steps will sample
    passed_over: int = 0  # times that a later one of its flow went first, see `queue.py`
    # It cannot start: its constraint is being made. Changes between steps alone (`core`).
    awaits_constraint: bool = field(init=False)
    match: PrefixMatch | None = None  # what was last found of it in the cache, while it waits
    lease: Lease | None = None  # None while waiting
    lease_id: int = 0  # another one with each lease; 0: none
    num_sent: int = 0  # blocks of the lease that the runner was sent
    is_asked: bool = False  # the runner was sent its sampling parameters
    batch_slot: int | None = None  # its place among the running; None while waiting or loading
    leased: float = 0.0  # when it was last given its blocks
    admitted: float | None = None  # when it first started
    match_seconds: float = 0.0  # seconds to find its prefix at the first admission
    load_seconds: float = 0.0  # seconds that it waited for blocks from slower tiers
    engine_seconds: float = 0.0  # its share of the steps that computed its tokens
    held_since: float | None = None  # when single flight first left it waiting
    has_sent_tokens: bool = False
    scores: list[TokenLogprobs] = field(default_factory=list)  # of its prompt's tokens so far
    source: FetchSource | None = None  # where to ask for blocks; None once that was done
    is_fetching: bool = False  # it waits for them
    fetches_only: bool = False  # what does not come is not computed: it ends then
    fetched_end: int = 0  # tokens of the prompt that were found or had come when it first started
    fetch_seconds: float = 0.0  # seconds that it waited for fetched blocks
    marks: tuple[Mark, ...] = ()  # what is to be retained of its prompt
    # For each cache breakpoint, once its prompt is computed: tokens that it cached up to there.
    written: tuple[int, ...] = ()
    added: list[tuple[int, int]] = field(default_factory=list)  # blocks, by leases given back
    written_tokens: int = 0  # put into the cache under its label by the leases it has given back
    first_reads: dict[str, int] = field(default_factory=dict)  # tokens by label (`messages`)

    def __post_init__(self) -> None:
        self.awaits_constraint = self.constraint is not None and not self.constraint.is_ready

    @property
    def is_loading(self) -> bool:
        """True if it holds its blocks but has not started: some are being loaded."""
        return self.lease is not None and self.batch_slot is None

    @property
    def may_start(self) -> bool:
        """True if nothing that it waits for is missing, once it has its lease."""
        return self.lease is not None and self.lease.ready and not self.is_fetching

    @property
    def is_to_score(self) -> bool:
        """True if the next tokens computed are to be scored; a prompt's last token never is."""
        return (
            self.sampling.prompt_logprobs is not None
            and self.num_computed < self.prompt_len - 1
            and not self.has_sent_tokens
        )

    @property
    def fetched(self) -> int:
        """Tokens of its prompt that another engine sent."""
        return max(self.fetched_end - self.found.total, 0)

    @property
    def prompt_computed(self) -> int:
        """Tokens of its prompt that were computed for it; each counts once."""
        return max(self.prompt_end - self.found.total - self.fetched, 0)

    @property
    def awaits_mask(self) -> bool:
        """True if its mask is still being made, which a step did not wait for."""
        return self.constraint is not None and self.constraint.is_busy

    @property
    def length(self) -> int:
        """Tokens in all, the pending ones included."""
        return self.num_tokens + self.num_pending

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

    def hold(self, lease: Lease, lease_id: int) -> None:
        """Give the sequence a lease, of which the runner knows nothing yet."""
        self.lease, self.lease_id, self.match = lease, lease_id, None
        self.num_sent, self.is_asked = 0, False

    def let_go(self) -> None:
        """Drop the lease: none of its tokens is computed or pending any more."""
        self.lease, self.lease_id = None, 0
        self.num_computed = self.num_pending = 0

    def append(self, token_id: int) -> None:
        """Add one generated token."""
        self.tokens[self.num_tokens] = token_id
        self.num_tokens += 1
        if self.constraint is not None:
            self.constraint.advance(token_id)
