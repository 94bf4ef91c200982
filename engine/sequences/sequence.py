"""A sequence in the engine: its tokens, its lease and its progress.

There is no prefill phase and no decode phase, only known and pending tokens:

    |  prompt  |  output  | pending |
    0                 num_tokens  length

`num_tokens` tokens are known. Pending tokens are sampled by a launched step, and are included in
`length`. The host learns their values when the step is settled. On the device, the next step can
already read them. The KV of the first `num_computed` tokens is in the pool, or will be when the
launched steps have ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.link.event_messages import DraftCounts, TokenLogprobs
from engine.link.messages import AdapterUse, FetchSource, Loads, Mark, Priority, SamplingParams
from engine.link.stats.tier_stats import StateTier, TierTokens
from engine.sequences.modules import SequenceModules
from engine.sequences.token_constraint import TokenConstraint
from prefix_cache.hashing import TokenIds as TokenIds
from prefix_cache.leases.lease import Lease
from prefix_cache.namespace import NamespacePath
from prefix_cache.tree.match import PrefixMatch


@dataclass(frozen=True, slots=True)
class WatchedAnswer:
    """The log probabilities of an answer's tokens, kept for the sentinel."""

    is_told: bool  # True if the client also requested log probabilities
    logprobs: list[float] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Sequence:
    """The sequence of a request. Sequences are compared by identity."""

    request_id: str
    client: bytes  # name of the gateway connection to which events are sent
    flow: str
    weight: float
    path: NamespacePath
    block_keys: bytes
    sampling: SamplingParams
    prompt_len: int
    arrived: float  # monotonic seconds
    tokens: TokenIds  # size prompt_len + max(max_tokens, 1); the first num_tokens are valid
    num_tokens: int
    writer: str = ""  # label of blocks that the sequence writes into the cache
    priority: Priority = "interactive"
    use_cache: bool = True
    is_counted: bool = True
    num_computed: int = 0
    # The number of tokens that have been computed, if larger than `num_computed`. It can be larger
    # because tokens after an earlier recurrent state are computed again after rejected drafts.
    num_verified: int = 0
    # The number of the prompt's leading tokens that launched steps compute. They are charged, also
    # if the request is cancelled before the steps are settled.
    prompt_end: int = 0
    loads: Loads = "auto"
    # Limits the next token; every generated token advances it.
    constraint: TokenConstraint | None = None

    # The numbers of prompt tokens, by tier, that the cache had at the first start.
    found: TierTokens = field(default_factory=TierTokens)
    # The number of prompt tokens with cached blocks at the first start. It is larger than
    # `found.total` if no recurrent state was cached at the end of these blocks.
    matched: int = 0
    state_tier: StateTier | None = None  # tier of the recurrent state, as in `Reused.state_tier`
    num_pending: int = 0  # number of tokens that launched steps will sample
    passed_over: int = 0  # how often a later sequence of the flow was chosen first

    # True while the constraint is being compiled. The sequence cannot start until then. The value
    # changes only between steps.
    awaits_constraint: bool = field(init=False)
    match: PrefixMatch | None = None
    lease: Lease | None = None
    lease_id: int = 0  # unique for each lease; 0 without a lease
    num_sent: int = 0  # number of the lease's blocks that were sent to the runner
    is_asked: bool = False  # True if the sampling parameters were sent to the runner
    adapter: AdapterUse | None = None
    adapter_slot: int = 0
    batch_slot: int | None = None  # None while waiting or loading
    leased: float = 0.0
    admitted: float | None = None
    match_seconds: float = 0.0  # seconds that matching the prefix took at the first admission
    load_seconds: float = 0.0  # seconds spent waiting for blocks from lower tiers
    target_itl_s: float = 0.0  # target for gaps between tokens in seconds; 0: the engine's target
    sent_at: float | None = None
    engine_seconds: float = 0.0  # the sequence's share of the duration of its steps
    # time from which it waits for blocks that another sequence computes
    held_since: float | None = None
    has_sent_tokens: bool = False
    scores: list[TokenLogprobs] = field(default_factory=list)
    embeds: bool = False  # True if the last event reports the prompt's embedding
    candidates: bytes = b""  # ids (int32) of tokens whose logits the last event reports

    # The embedding and the logits that the last event will report, float32.
    embedding: bytes = b""
    logits: bytes = b""
    source: FetchSource | None = None  # engine from which to fetch blocks; None after it was asked
    is_fetching: bool = False
    fetches_only: bool = False
    # Number of the prompt's leading tokens found or fetched at the first start.
    fetched_end: int = 0
    fetch_seconds: float = 0.0
    marks: tuple[Mark, ...] = ()
    question: int = 0  # number of tokens before the user's last message; 0 if unknown

    # For each of `marks`, the number of tokens added to the cache.
    written: tuple[int, ...] = ()
    added: list[tuple[int, int]] = field(default_factory=list)
    written_tokens: int = 0  # number of tokens added to the cache under leases that were released
    first_reads: dict[str, int] = field(default_factory=dict)
    drafts: bool = True
    # The number of known tokens after which the draft head drafted, and the drafted tokens.
    head_draft: tuple[int, tuple[int, ...]] = 0, ()
    prediction: TokenIds | None = None  # tokens of an expected answer, from which drafts are made
    modules: SequenceModules | None = None
    # The model's positions of all `tokens`, or None for 0, 1, 2, ...
    positions: TokenIds | None = None
    # Source -> numbers of tokens (drafted, accepted) so far.
    draft_counts: DraftCounts = field(default_factory=dict)
    watch: WatchedAnswer | None = None  # None: the sentinel does not check the answer

    def __post_init__(self) -> None:
        self.awaits_constraint = self.constraint is not None and not self.constraint.is_ready

    @property
    def is_unready(self) -> bool:
        """True if the constraint, the adapter or a prompt module is not ready."""
        modules = self.modules is not None and self.modules.is_awaited
        adapter = self.adapter is not None and not self.adapter_slot
        return self.awaits_constraint or adapter or modules

    @property
    def num_before(self) -> int:
        """The number of module tokens in whole blocks, which precede the sequence's own tokens."""
        return 0 if self.modules is None else self.modules.num_tokens

    @property
    def is_loading(self) -> bool:
        """True if the sequence has a lease but no slot, because blocks are being loaded."""
        return self.lease is not None and self.batch_slot is None

    @property
    def may_start(self) -> bool:
        """True if the sequence has a lease, and no block is being loaded or fetched."""
        return self.lease is not None and self.lease.ready and not self.is_fetching

    @property
    def is_to_score(self) -> bool:
        """True if the next tokens to compute are scored. A prompt's last token is never scored."""
        return (
            self.sampling.prompt_logprobs is not None
            and self.num_computed < self.prompt_len - 1
            and not self.has_sent_tokens
        )

    @property
    def fetched(self) -> int:
        """The number of the prompt's tokens that another engine sent."""
        return max(self.fetched_end - self.found.total, 0)

    @property
    def found_with_modules(self) -> TierTokens:
        """The tokens of the prompt and its modules that the cache had at the first start."""
        modules = self.modules
        if modules is None or self.admitted is None:
            return self.found
        total = max(self.found.total + modules.num_tokens - modules.computed, 0)
        lower = self.found + modules.loaded  # copied tokens may count in both
        disk = min(lower.disk, total)
        host = min(lower.host, total - disk)
        return TierTokens(total - disk - host, host, disk)

    @property
    def prompt_computed(self) -> int:
        """The number of the prompt's tokens that were computed. Each token counts once."""
        return max(self.prompt_end - self.found.total - self.fetched, 0)

    @property
    def awaits_mask(self) -> bool:
        """True while the mask is late: a step left the sequence's row out."""
        return self.constraint is not None and self.constraint.is_busy

    @property
    def num_again(self) -> int:
        """The number of tokens after the recurrent state that must be computed again."""
        return max(self.num_verified - self.num_computed, 0)

    @property
    def length(self) -> int:
        """The number of known and pending tokens."""
        return self.num_tokens + self.num_pending

    @property
    def num_output(self) -> int:
        """The number of generated tokens."""
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
        """Give the sequence a new lease. None of its blocks have been sent to the runner."""
        self.lease, self.lease_id, self.match = lease, lease_id, None
        self.num_sent, self.is_asked = 0, False

    def let_go(self) -> None:
        """Drop the lease. No tokens are computed or pending any more."""
        self.lease, self.lease_id = None, 0
        self.num_computed = self.num_pending = self.num_verified = 0

    def append(self, token_id: int) -> None:
        """Add one generated token."""
        self.tokens[self.num_tokens] = token_id
        self.num_tokens += 1
        if self.constraint is not None:
            self.constraint.advance(token_id)
