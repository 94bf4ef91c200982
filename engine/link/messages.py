"""Messages on the link between gateway and engine.

Forward go `Hello`, `RecordedFlushes`, `Partition`, `Generate`, `Cancel` and queries; back come one
`Welcome` per `Hello`, one `StepReply` per step and gateway, and one reply per query
(`query_messages.py`). To gateways that subscribe, `CacheEvents` come as well (`cache_events.py`).
Every `Generate` is answered by any number of `Tokens` and exactly one `Finished` or `Failed`, also
when it was cancelled.

Knows: field names, types, units. Does not know: sockets, or how bytes are bounded (`codec.py`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from engine.link.cache_events import CacheEvents, EventsTaken, Subscribe
from engine.link.query_messages import QueryMessage, ReplyMessage
from engine.link.stats_messages import TierTokens
from prefix_cache.names import Loads as Loads  # with the rest of a request

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

FinishReason = Literal["stop", "length", "cancelled"]
GrammarKind = Literal["json_schema", "regex", "lark", "gbnf"]
Role = Literal["prefill", "decode", "both"]  # which part of requests an engine is for
Priority = Literal["interactive", "batch"]  # batch waits for interactive, within bounds


def pack_token_ids(token_ids: npt.ArrayLike) -> bytes:
    """Pack token ids as they travel: int32, little endian."""
    # Imported here: commands need this file, but send no tokens, and numpy takes 0.1 s to load.
    import numpy as np

    return np.asarray(token_ids, dtype="<i4").tobytes()


class LogitBias(msgspec.Struct, frozen=True, array_like=True):
    """Biases of the logits of some tokens, as they travel: ids and values little endian.

    Packed, since a request has up to some thousand for each of its choices, and only the
    device has to look at them one by one.
    """

    token_ids: bytes = b""  # int32, each once
    values: bytes = b""  # float32, as many

    def __len__(self) -> int:  # tokens that have a bias
        return len(self.token_ids) // 4


def pack_logit_bias(bias: Mapping[int, float]) -> LogitBias:
    """Pack biases by token id; the ids fit into int32, and the values into float32."""
    import numpy as np

    return LogitBias(pack_token_ids(list(bias)), np.array(list(bias.values()), "<f4").tobytes())


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """Grammar of an answer. The engine compiles it; a tenant's is never shared with others.

    Any JSON object is the schema `{"type": "object"}`, a choice of texts a regex or a Lark rule;
    calls of tools among text are Lark, with `%json {...}` for the schemas of their arguments.
    """

    kind: GrammarKind
    text: str


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of sampling. Validated at admission; nothing after it re-checks."""

    max_tokens: int  # 0: the prompt is computed into the cache, and nothing is told of a token
    min_tokens: int = 0
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: LogitBias = LogitBias()
    seed: int | None = None
    num_logprobs: int | None = None  # None: no logprobs; 0: the chosen token's alone
    prompt_logprobs: int | None = None  # the same of every token of the prompt but the first
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    grammar: Grammar | None = None


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a gateway on every (re)connection."""


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A part of a prompt, from its beginning on, that is to be retained in the cache."""

    num_tokens: int  # of them whole blocks count
    seconds: float  # from each use on


class FetchSource(msgspec.Struct, frozen=True, array_like=True):
    """Another engine of this fingerprint that has the beginning of a prompt, or computes it now.

    A hint: what does not come from there is computed, and a wrong one costs a bounded wait.
    """

    address: str  # of its exchange of blocks (`Welcome.exchange_address`)
    num_tokens: int  # of the prompt, from its beginning on, that are believed to be there
    # A request that computes this prompt there: blocks are sent as they come to be, until its
    # prompt is computed. None: what is there now is sent.
    request_id: str | None = None
    only: bool = False  # what does not come is not computed: the request ends without a token


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """One sequence to continue. `n` choices are `n` of these; single flight shares the prompt."""

    request_id: str
    token_ids: bytes  # int32, little endian
    namespaces: tuple[tuple[int, bytes], ...]  # spans of a NamespacePath
    block_keys: bytes  # 16 bytes for every whole block of the prompt
    flow: str  # whose turn it is; opaque to the engine
    weight: float = 1.0
    priority: Priority = "interactive"
    sampling: SamplingParams
    use_cache: bool = True  # False: neither read from the cache nor write to it
    loads: Loads = "auto"
    # The flow's floor and ceiling as shares of each tier, 0 to 1; flows divide what lies between
    # by weight. None: no floor, no ceiling. Of no effect where tiers are partitioned.
    cache_quota: tuple[float, float] | None = None
    # A label for the blocks that it writes into the last of its namespaces. The first request that
    # hits them receives the label (`WrittenAndRead`). Opaque to the engine; "": none.
    writer: str = ""
    marks: tuple[Mark, ...] = ()  # in order of their tokens
    source: FetchSource | None = None  # where to fetch from what of the prompt is not cached here
    is_counted: bool = True  # the prompt, as looked up; False: the engine that answers counts it


class FlowQuota(msgspec.Struct, frozen=True, array_like=True):
    """Quota of a flow in each tier, as parts of 1, and its weight."""

    floor: Annotated[float, Meta(ge=0, le=1)] = 0.0
    ceiling: Annotated[float, Meta(ge=0, le=1)] = 1.0
    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0


class Partition(msgspec.Struct, frozen=True, kw_only=True, tag="partition"):
    """Divide each tier of the cache among these flows: each has its fair share for itself.

    Replaces what was sent before; without any flow, flows share all tiers (`Generate.cache_quota`).
    One that is not named has no part. Not answered; may be repeated.
    """

    flows: dict[str, FlowQuota]


class RecordedFlushes(msgspec.Struct, frozen=True, kw_only=True, tag="flushes"):
    """Flushes that were ordered at any time, by their ids; None: of everything.

    The engine does those that its cache, its disk included, has not done. The first message of a
    gateway after the welcome, and sent again when there are more. Not answered; may be repeated.
    """

    flushes: dict[str, str | None]


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Cancel after the client left or a stop string. Answered by `Finished("cancelled")`."""

    request_id: str


ToEngine = (
    Hello | RecordedFlushes | Partition | Generate | Cancel | Subscribe | EventsTaken | QueryMessage
)


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """Description of the engine. `engine_id` is new for every start of the process."""

    engine_id: str
    fingerprint: bytes
    vocab_size: int
    block_size: int
    max_model_len: int  # tokens: the model's context or the pool, whichever is smaller
    eos_token_ids: tuple[int, ...]
    device: str
    dtype: str
    exchange_address: str | None = None  # where other engines fetch blocks; None: from nowhere
    role: Role = "both"  # for gateways: the engine itself serves whatever it is sent
    tensor_parallel: int = 1  # ranks of each stage
    pipeline_parallel: int = 1  # stages


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural-log probabilities at one position, before temperature and penalties.

    The likeliest are packed: the engine's thread copies them as they came from the device.
    """

    chosen: float
    top_ids: bytes = b""  # int32, little endian, most likely first
    top_values: bytes = b""  # float32, little endian, as many
    rank: int | None = None  # of a prompt's token: 1 is the likeliest

    @property
    def top(self) -> tuple[tuple[int, float], ...]:
        """(token id, logprob), most likely first; unpacked anew each time."""
        count = len(self.top_ids) // 4
        ids = struct.unpack(f"<{count}i", self.top_ids)
        return tuple(zip(ids, struct.unpack(f"<{count}f", self.top_values), strict=True))


# Of each token of a prompt but the first.
PromptLogprobs = tuple[TokenLogprobs, ...] | None


class Timing(msgspec.Struct, frozen=True, array_like=True):
    """Parts of a sequence's time before its first token. Seconds, one after the other."""

    queue: float  # waiting for its turn
    match: float  # finding its prefix in the cache and leasing blocks
    load: float  # waiting for blocks from slower tiers; 0 where there are none
    prefill: float  # from then on until the step that sampled its first token was settled
    fetch: float = 0.0  # between load and prefill: waiting for blocks of another engine
    # When that was, by the engine's own clock, which is compared with nothing but itself: whoever
    # reads it may be late. None: it is not told.
    at: float | None = None


class Reused(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of a prompt that came from the cache, and those put there for a time."""

    tiers: TierTokens = TierTokens()
    # What computing these tokens would have taken, by the rates so far; None: there is none.
    saved_seconds: float | None = None
    # Tokens that the request has computed and put in the cache, for each of its marks those after
    # the mark before.
    written: tuple[int, ...] = ()
    fetched: int = 0  # tokens that another engine sent; none of them is in `tiers`

    @property
    def tokens(self) -> int:
        """Tokens that were not computed."""
        return self.tiers.total + self.fetched

    @property
    def by_tier(self) -> TierTokens:
        """All tokens that were not computed; those of another engine were put on the device."""
        return self.tiers + TierTokens(self.fetched)


class Tokens(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """Tokens a step appended to a sequence."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    reused: Reused | None = None  # set on the first Tokens of a request
    timing: Timing | None = None  # likewise
    prompt_logprobs: PromptLogprobs = None  # likewise, if asked for


class WrittenAndRead(msgspec.Struct, frozen=True, array_like=True):
    """Changes by a request to the counts of tokens that were written and never read.

    Only what was written under a label (`Generate.writer`) is counted, in whole blocks.
    """

    written: int = 0  # put into the cache under its own label, and not there before
    first_reads: dict[str, int] = {}  # found there before any other request, by their labels


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """End of a sequence, or its cancellation."""

    request_id: str
    reason: FinishReason
    stop_token_id: int | None = None  # the token that stopped it, which Tokens does not repeat
    prompt_tokens: int
    reused: Reused = Reused()
    computed_tokens: int = 0  # of the prompt, for this sequence; what is computed anew counts once
    completion_tokens: int  # all that were sampled, also those that no Tokens told any more
    engine_seconds: float = 0.0  # its share, by tokens, of the steps that it took part in
    cache: WrittenAndRead = WrittenAndRead()
    prompt_logprobs: PromptLogprobs = None  # where no Tokens came before


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Failure of a sequence that could not be served; `code` is one of `engine.errors`."""

    request_id: str
    code: str
    message: str
    retry_after_s: float | None = None
    reused: Reused | None = None  # the rest as in `Finished`; None: it had not begun
    computed_tokens: int = 0
    completion_tokens: int = 0
    cache: WrittenAndRead = WrittenAndRead()


Event = Tokens | Finished | Failed


class StepReply(msgspec.Struct, frozen=True, tag="step"):
    """All events of one step for one gateway."""

    events: list[Event]


FromEngine = Welcome | StepReply | CacheEvents | ReplyMessage
