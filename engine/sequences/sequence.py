"""A sequence in the engine: its tokens, its lease and its progress.

There is no prefill phase and no decode phase, only known and pending tokens:

    |  prompt  |  output  | pending |
    0                 num_tokens  length

`num_tokens` tokens are known. A launched step samples the pending tokens, which `length` includes.
The host learns their values when the step is settled. The device passes the tokens to the next
step. The KV of the first `num_computed` tokens is in the pool, or will be after the launched steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.link.event_messages import DraftCounts, TokenLogprobs
from engine.link.messages import AdapterUse, FetchSource, Loads, Mark, Priority, SamplingParams
from engine.link.stats_messages import StateTier, TierTokens
from engine.sequences.modules import SequenceModules
from engine.sequences.token_constraint import TokenConstraint
from prefix_cache.hashing import TokenIds as TokenIds
from prefix_cache.leases.lease import Lease
from prefix_cache.namespace import NamespacePath
from prefix_cache.tree.match import PrefixMatch


@dataclass(frozen=True, slots=True)
class WatchedAnswer:
    """The log-probabilities of an answer's tokens, kept for the sentinel."""

    is_told: bool  # True if the client asked for log-probabilities too
    logprobs: list[float] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Sequence:
    """The sequence of a request, compared by identity."""

    request_id: str
    client: bytes  # connection of the gateway that gets the events
    flow: str
    weight: float
    path: NamespacePath
    block_keys: bytes
    sampling: SamplingParams
    prompt_len: int
    arrived: float  # seconds, monotonic
    tokens: TokenIds  # capacity prompt_len + max(max_tokens, 1); the first num_tokens are valid
    num_tokens: int
    writer: str = ""  # label of blocks that the sequence writes into the cache
    priority: Priority = "interactive"
    use_cache: bool = True
    is_counted: bool = True
    num_computed: int = 0
    # The tokens that rows have computed, if more than `num_computed`. After rejected drafts, tokens
    # are computed again from an earlier recurrent state.
    num_verified: int = 0
    prompt_end: int = 0  # end of the prompt's tokens that settled steps have computed
    loads: Loads = "auto"
    constraint: TokenConstraint | None = None  # advanced by every generated token

    # The prompt tokens that the cache had at the first start.
    found: TierTokens = field(default_factory=TierTokens)
    # The number of prompt tokens with cached blocks at the first start. It exceeds `found.total` if
    # the last of these blocks had no recurrent state at its end.
    matched: int = 0
    state_tier: StateTier | None = None  # tier of the recurrent state, as in `Reused.state_tier`
    num_pending: int = 0  # tokens that launched steps will sample
    passed_over: int = 0  # number of times that a later sequence of the flow went first

    # True while the constraint is compiled, which prevents a start. Changes only between steps.
    awaits_constraint: bool = field(init=False)
    match: PrefixMatch | None = None
    lease: Lease | None = None
    lease_id: int = 0  # different for each lease; 0 without a lease
    num_sent: int = 0  # blocks of the lease that were sent to the runner
    is_asked: bool = False  # True if the runner has the request's sampling parameters
    adapter: AdapterUse | None = None
    adapter_slot: int = 0
    batch_slot: int | None = None  # None while waiting or loading
    leased: float = 0.0
    admitted: float | None = None
    match_seconds: float = 0.0  # seconds to match the prefix at the first admission
    load_seconds: float = 0.0  # seconds of waiting for blocks of lower tiers
    target_itl_s: float = 0.0  # target for gaps between tokens; 0 stands for the engine's target
    sent_at: float | None = None
    engine_seconds: float = 0.0  # the sequence's share of its steps' seconds
    held_since: float | None = None  # start of the current delay by single flight
    has_sent_tokens: bool = False
    scores: list[TokenLogprobs] = field(default_factory=list)
    embeds: bool = False  # True if the last event reports the prompt's embedding
    candidates: bytes = b""  # int32 ids of tokens whose logits the last event reports

    # The embedding and the logits for the last event, float32.
    embedding: bytes = b""
    logits: bytes = b""
    source: FetchSource | None = None  # engine to ask for blocks; None once asked
    is_fetching: bool = False
    fetches_only: bool = False
    fetched_end: int = 0  # end of the prompt's tokens found or fetched at the first start
    fetch_seconds: float = 0.0
    marks: tuple[Mark, ...] = ()
    question: int = 0  # tokens before the user's last message; 0 if unknown

    # The number of tokens put in the cache for each of `marks`.
    written: tuple[int, ...] = ()
    added: list[tuple[int, int]] = field(default_factory=list)
    written_tokens: int = 0  # tokens that released leases had put in the cache
    first_reads: dict[str, int] = field(default_factory=dict)
    drafts: bool = True
    # The number of known tokens at which the draft head drafted, and the drafted tokens.
    head_draft: tuple[int, tuple[int, ...]] = 0, ()
    prediction: TokenIds | None = None  # tokens of an expected answer, to draft from
    modules: SequenceModules | None = None
    # The model's positions of all `tokens`, or None for 0, 1, 2, ...
    positions: TokenIds | None = None
    # The number of tokens drafted and accepted so far, by source.
    draft_counts: DraftCounts = field(default_factory=dict)
    watch: WatchedAnswer | None = None  # None: the sentinel does not check the answer

    def __post_init__(self) -> None:
        self.awaits_constraint = self.constraint is not None and not self.constraint.is_ready

    @property
    def is_unready(self) -> bool:
        """True if the constraint, adapter or prompt modules are not ready."""
        modules = self.modules is not None and self.modules.is_awaited
        adapter = self.adapter is not None and not self.adapter_slot
        return self.awaits_constraint or adapter or modules

    @property
    def num_before(self) -> int:
        """The number of module tokens in whole blocks, all before the sequence's own tokens."""
        return 0 if self.modules is None else self.modules.num_tokens

    @property
    def is_loading(self) -> bool:
        """True if the sequence has a lease but has not started, since blocks are being loaded."""
        return self.lease is not None and self.batch_slot is None

    @property
    def may_start(self) -> bool:
        """True if the sequence has a lease, and no block is being loaded or fetched."""
        return self.lease is not None and self.lease.ready and not self.is_fetching

    @property
    def is_to_score(self) -> bool:
        """True if the next computed tokens are scored. A prompt's last token is never scored."""
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
        lower = self.found + modules.loaded  # tokens that are copied may be in both
        disk = min(lower.disk, total)
        host = min(lower.host, total - disk)
        return TierTokens(total - disk - host, host, disk)

    @property
    def prompt_computed(self) -> int:
        """The number of the prompt's tokens that were computed, each token counted once."""
        return max(self.prompt_end - self.found.total - self.fetched, 0)

    @property
    def awaits_mask(self) -> bool:
        """True if the mask is still being made, after a step left the sequence's row out."""
        return self.constraint is not None and self.constraint.is_busy

    @property
    def num_again(self) -> int:
        """The number of computed tokens after the recurrent state, which are computed again."""
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
        """Give the sequence a new lease, none of whose blocks were sent to the runner."""
        self.lease, self.lease_id, self.match = lease, lease_id, None
        self.num_sent, self.is_asked = 0, False

    def let_go(self) -> None:
        """Drop the lease, and all computed and pending tokens."""
        self.lease, self.lease_id = None, 0
        self.num_computed = self.num_pending = self.num_verified = 0

    def append(self, token_id: int) -> None:
        """Add one generated token."""
        self.tokens[self.num_tokens] = token_id
        self.num_tokens += 1
        if self.constraint is not None:
            self.constraint.advance(token_id)
