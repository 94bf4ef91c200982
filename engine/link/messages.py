"""The messages on the link between gateway and engine.

A gateway sends `Hello`, `RecordedFlushes`, `Partition`, `Generate`, `Cancel` and queries. An engine
sends one `Welcome` per `Hello`, one `StepReply` per step and gateway (`event_messages.py`), and one
reply per query (`query_messages.py`). An engine sends `CacheEvents` to gateways that subscribe
(`cache_events.py`).

Elsewhere: the encoding and the maximum size (`codec.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from engine.link.cache_events import CacheEvents, EventsTaken, Subscribe
from engine.link.event_messages import StepReply
from engine.link.prompt_module import ID_BYTES, PromptModule
from engine.link.query_messages import QueryMessage, ReplyMessage
from prefix_cache.names import Loads as Loads

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

# The kinds of grammars. `lark` is llguidance's dialect, which has a lexer. `lark_text` is the set
# of texts that the Lark rules match, without a lexer. `lark_string` is the same set as JSON
# strings. `clients_lark` becomes `lark_text` if possible, else `lark`.
GrammarKind = Literal[
    "json_schema", "regex", "lark", "gbnf", "lark_text", "lark_string", "clients_lark"
]
Role = Literal["prefill", "decode", "both"]  # the phase of requests that an engine is meant for
# "batch" requests wait for "interactive" ones, within limits.
Priority = Literal["interactive", "batch"]


def pack_token_ids(token_ids: npt.ArrayLike) -> bytes:
    """Pack token ids into bytes: int32, little endian."""
    # Import NumPy here: it takes 0.1 s to load, and commands import this file but send no tokens.
    import numpy as np

    return np.asarray(token_ids, dtype="<i4").tobytes()


class LogitBias(msgspec.Struct, frozen=True, array_like=True):
    """The logit biases of some tokens, as packed bytes, little endian.

    They are packed because a request may have thousands, and only the device reads each one.
    """

    token_ids: bytes = b""  # token ids, int32, each once
    values: bytes = b""  # biases, float32, one for each token id

    def __len__(self) -> int:  # returns the number of tokens with a bias
        return len(self.token_ids) // 4


def pack_logit_bias(bias: Mapping[int, float]) -> LogitBias:
    """Pack biases given by token id. Ids must fit into int32, and values into float32."""
    import numpy as np

    return LogitBias(pack_token_ids(list(bias)), np.array(list(bias.values()), "<f4").tobytes())


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """A grammar for an answer. The engine compiles it, and never shares it between tenants.

    Any JSON object is allowed by the JSON schema `{"type": "object"}`. A choice between texts is a
    regex or a Lark rule. Text with tool calls is Lark, with `%json {...}` for the JSON schemas of
    the arguments.
    """

    kind: GrammarKind
    text: str


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """The sampling parameters of a request. They are validated at admission, not again later."""

    max_tokens: int  # 0: only compute the prompt into the cache, and sample nothing
    min_tokens: int = 0
    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: LogitBias = LogitBias()
    seed: int | None = None
    num_logprobs: int | None = (
        None  # number of most likely tokens to list with the sampled token; None: no logprobs
    )
    # Like `num_logprobs`, for each token of the prompt but the first.
    prompt_logprobs: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    grammar: Grammar | None = None


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message of a gateway over each new connection."""


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A mark: the first tokens of a prompt are to be retained in the cache."""

    num_tokens: int  # only the whole blocks of these tokens are retained
    seconds: float  # seconds of retention after each use


class FetchSource(msgspec.Struct, frozen=True, array_like=True):
    """Another engine that has the beginning of a prompt, or is computing it. Same fingerprint.

    The source is a hint. Blocks that the source does not send are computed. A wrong hint costs a
    wait of limited length.
    """

    address: str  # address of the other engine's exchange (`Welcome.exchange_address`)
    num_tokens: int  # number of the prompt's leading tokens that the other engine probably has

    # The id of the other engine's request that computes this prompt. The other engine then also
    # sends blocks that the request has yet to compute. None: it sends only the blocks it has.
    request_id: str | None = None
    # True: only fetch; missing blocks are not computed, and the request ends without a token.
    only: bool = False


class AdapterUse(msgspec.Struct, frozen=True, array_like=True):
    """The LoRA adapter of a request. The request's namespaces are derived from its digest."""

    digest: bytes  # 32-byte hash of the adapter's weights, rank and scale
    path: str  # the adapter's folder, relative to the engine's folder of adapters

    # The first position computed with the adapter. Earlier positions are computed without it.
    start: int = 0


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """A request to continue one prompt.

    A client's request with `n` choices is sent as `n` messages with the same prompt.
    """

    request_id: str
    token_ids: bytes  # int32, little endian
    namespaces: tuple[tuple[int, bytes], ...]  # the spans of the prompt's NamespacePath
    block_keys: bytes  # keys of the prompt's whole blocks, 16 bytes each
    flow: str  # unit of fairness in the queue; any name
    weight: float = 1.0
    priority: Priority = "interactive"
    sampling: SamplingParams
    use_cache: bool = True  # False: neither read from the cache nor write to it
    loads: Loads = "auto"
    # The flow's minimum and maximum shares of each tier, 0 to 1. Between them, flows share blocks
    # by weight. No effect if tiers are partitioned.
    cache_quota: tuple[float, float] | None = None
    # The label of the blocks that the request writes into the last of its namespaces. The first
    # request that reads such a block reports the label (`WrittenAndRead`). "": no label.
    writer: str = ""
    marks: tuple[Mark, ...] = ()  # in increasing order of tokens
    # Number of tokens before the user's last message (`Welcome.has_states`); 0: unknown.
    question: int = 0
    source: FetchSource | None = None  # engine from which missing blocks may be fetched
    # True if this engine counts the prompt's lookup. If several engines get the prompt, only one
    # counts it.
    is_counted: bool = True

    # True: drafts may be verified. This does not change the answer.
    drafts: bool = True
    # With `embeds` or `candidates`, `max_tokens` is 0, and `Finished` reports the hidden state or
    # the logits at the prompt's last token.
    embeds: bool = False  # report the hidden state
    candidates: bytes = b""  # tokens whose logits are reported, int32, little endian
    # Tokens of an expected answer, from which drafts are made, int32, little endian.
    prediction: bytes = b""
    adapter: AdapterUse | None = None  # None: no adapter
    # Prompt modules that precede the tokens (`Welcome.has_modules`)
    modules: tuple[PromptModule, ...] = ()
    positions: bytes = b""  # position of each token, int32, little endian; empty: 0, 1, 2, ...
    target_itl_s: float = 0.0  # maximum seconds between tokens, as a target; 0: the engine's target

    @property
    def prompt_tokens(self) -> int:
        """The number of the prompt's tokens, including tokens of its modules."""
        before = sum(len(part) for one in self.modules for part in one.whole)
        return before + len(self.token_ids) // ID_BYTES


class FlowQuota(msgspec.Struct, frozen=True, array_like=True):
    """The quota of a flow in each tier: shares of the tier, weight, and maximum request."""

    floor: Annotated[float, Meta(ge=0, le=1)] = 0.0
    ceiling: Annotated[float, Meta(ge=0, le=1)] = 1.0
    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    # Maximum tokens of prompt plus answer; 0: the context length.
    max_request_tokens: Annotated[int, Meta(ge=0)] = 0


class Partition(msgspec.Struct, frozen=True, kw_only=True, tag="partition"):
    """A command to divide each tier of the cache among these flows by fair shares.

    It replaces the partition sent before. If no flow is named, all flows share the tiers
    (`Generate.cache_quota`). If any flow is named, flows that are not named get nothing. There is
    no reply. The command may be repeated.
    """

    flows: dict[str, FlowQuota]


class RecordedFlushes(msgspec.Struct, frozen=True, kw_only=True, tag="flushes"):
    """A command to do all flushes ever recorded: flush id -> flow, or None to flush everything.

    The engine skips flushes that it has already done. A gateway sends all flushes first after the
    welcome, and new flushes later. There is no reply. The command may be repeated.
    """

    flushes: dict[str, str | None]


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """A command to cancel a request, because its client left or its answer has a stop string.

    The reply is `Finished("cancelled")`.
    """

    request_id: str


ToEngine = (
    Hello | RecordedFlushes | Partition | Generate | Cancel | Subscribe | EventsTaken | QueryMessage
)


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """The description of the engine. `engine_id` differs for every start of the process."""

    engine_id: str
    fingerprint: bytes
    vocab_size: int
    block_size: int
    # Maximum tokens of a sequence: the smaller of the model's context and the pool.
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    device: str
    dtype: str
    exchange_address: str | None = None
    role: Role = "both"  # a hint to gateways; the engine serves any request
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    has_states: bool = False  # True with recurrent layers; a cache hit then ends at a stored state
    hidden_size: int = 0  # number of values in an embedding
    has_head: bool = True  # False: the model has no logits, so prompts can only be embedded
    has_modules: bool = False  # True: prompts may have prompt modules


FromEngine = Welcome | StepReply | CacheEvents | ReplyMessage
