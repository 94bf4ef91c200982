"""The messages on the link between gateway and engine.

A gateway sends `Hello`, `RecordedFlushes`, `Partition`, `Generate`, `Cancel` and queries. An engine
sends one `Welcome` per `Hello`, one `StepReply` per step and gateway (`event_messages.py`), and one
reply per query (`query_messages.py`). An engine sends `CacheEvents` to gateways that subscribe
(`cache_events.py`).

Elsewhere: how bytes are bounded (`codec.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from engine.link.cache_events import CacheEvents, EventsTaken, Subscribe
from engine.link.event_messages import StepReply
from engine.link.query_messages import QueryMessage, ReplyMessage
from prefix_cache.names import Loads as Loads

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

# The kinds of grammars. `lark` is llguidance's own dialect, with a lexer. `lark_text` is matched
# against the answer's text. `lark_string` has its texts as JSON strings. `clients_lark` is `lark`
# or `lark_text`.
GrammarKind = Literal[
    "json_schema", "regex", "lark", "gbnf", "lark_text", "lark_string", "clients_lark"
]
Role = Literal["prefill", "decode", "both"]  # phase of requests that an engine is for
_ID_BYTES, _KEY_BYTES = 4, 16  # bytes of a token's id, and of a block's key
Priority = Literal["interactive", "batch"]  # batch waits for interactive, within bounds


def pack_token_ids(token_ids: npt.ArrayLike) -> bytes:
    """Pack token ids for the link: int32, little endian."""
    # Commands need this file but send no tokens, and numpy takes 0.1 s to load.
    import numpy as np

    return np.asarray(token_ids, dtype="<i4").tobytes()


class LogitBias(msgspec.Struct, frozen=True, array_like=True):
    """The biases of the logits of some tokens, packed: ids and values little endian.

    A request may have some thousand biases, and only the device reads them one by one.
    """

    token_ids: bytes = b""  # token ids, int32, each once
    values: bytes = b""  # biases, float32, one for each token id

    def __len__(self) -> int:  # number of tokens with a bias
        return len(self.token_ids) // 4


def pack_logit_bias(bias: Mapping[int, float]) -> LogitBias:
    """Pack biases by token id. The ids fit into int32, and the values into float32."""
    import numpy as np

    return LogitBias(pack_token_ids(list(bias)), np.array(list(bias.values()), "<f4").tobytes())


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """A grammar of an answer, which the engine compiles and never shares between tenants.

    "Any JSON object" is the JSON schema `{"type": "object"}`. A choice of texts is a regex or a
    Lark rule. Tool calls among text are Lark, with `%json {...}` for the JSON schemas of their
    arguments.
    """

    kind: GrammarKind
    text: str


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """The sampling parameters, validated at admission and never checked again."""

    max_tokens: int  # 0: the prompt is computed into the cache, without sampled tokens
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
    num_logprobs: int | None = (
        None  # number of listed tokens besides the sampled token; None: no logprobs
    )
    prompt_logprobs: int | None = None  # like `num_logprobs`, but for prompt tokens after the first
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    grammar: Grammar | None = None


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message of a gateway on every (re)connection."""


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """The first tokens of a prompt, to be retained in the cache."""

    num_tokens: int  # only their whole blocks are retained
    seconds: float  # seconds of retention after each use


class FetchSource(msgspec.Struct, frozen=True, array_like=True):
    """Another engine of this fingerprint that has the beginning of a prompt, or computes it now.

    The source is a hint. Blocks that do not come from the source are computed. A wrong hint costs a
    bounded wait.
    """

    address: str  # address of the other engine's exchange (`Welcome.exchange_address`)
    num_tokens: int  # leading tokens of the prompt that the other engine probably has

    # The other engine's request that computes this prompt. Blocks that it has yet to compute are
    # sent too. None: only present blocks are sent.
    request_id: str | None = None
    only: bool = False  # missing blocks are not computed: the request ends without a token


class AdapterUse(msgspec.Struct, frozen=True, array_like=True):
    """The LoRA adapter that computes a request. Its digest is in the request's namespaces."""

    digest: bytes  # 32 bytes, of the adapter's weights, rank and scale
    path: str  # the adapter's folder, below the engine's folder of adapters

    # The first position that the adapter computes. The model alone computes earlier positions.
    start: int = 0


class PromptModule(msgspec.Struct, frozen=True, array_like=True):
    """A prompt module, whose KV is computed once and read by all prompts that name it.

    A module attends to itself, and perhaps to its head, the first module of the request. A module
    that attends to its head begins with copies of the head's last tokens, which do not fill a
    block. A prompt's own tokens attend to the tokens of its modules. Whole blocks of a module are
    read in place. The module's other tokens are copied to the beginning of the prompt.
    """

    token_ids: bytes  # int32, little endian; padded to whole blocks; nothing attends to padding
    num_tokens: int  # tokens without the padding
    positions: bytes  # int32, little endian, one for each token
    namespace: bytes  # 16 bytes, used only for this module at these positions
    block_keys: bytes  # 16 bytes for every block
    head_tokens: int | None = None  # number of first tokens copied from the head; None: no head

    @property
    def own_tokens(self) -> int:
        """The number of the module's tokens, without padding and the head module's tokens."""
        return self.num_tokens - (self.head_tokens or 0)

    @property
    def padded_tokens(self) -> int:
        """The number of the module's tokens with the padding."""
        return len(self.token_ids) // _ID_BYTES

    @property
    def whole(self) -> range:
        """The module's tokens that fill whole blocks. These are read in place."""
        size = len(self.token_ids) // _ID_BYTES // (len(self.block_keys) // _KEY_BYTES)
        start = min(-(-(self.head_tokens or 0) // size) * size, self.num_tokens)
        return range(start, max(self.num_tokens // size * size, start))

    @property
    def copied(self) -> tuple[int, ...]:
        """The module's tokens that are copied, without the head module's tokens."""
        whole = self.whole
        return (*range(self.head_tokens or 0, whole.start), *range(whole.stop, self.num_tokens))


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """A request to continue one sequence.

    A client's request of `n` choices is `n` messages with the same prompt.
    """

    request_id: str
    token_ids: bytes  # int32, little endian
    namespaces: tuple[tuple[int, bytes], ...]  # spans of a NamespacePath
    block_keys: bytes  # 16 bytes for every whole block of the prompt
    flow: str  # unit of fairness, opaque to the engine
    weight: float = 1.0
    priority: Priority = "interactive"
    sampling: SamplingParams
    use_cache: bool = True  # False: no reads from the cache, no writes to it
    loads: Loads = "auto"
    # The flow's floor and ceiling as shares of each tier, 0 to 1. Flows share blocks between floor
    # and ceiling by weight. No effect where tiers are partitioned.
    cache_quota: tuple[float, float] | None = None
    # A label of the blocks that the request writes into the last of its namespaces. The first
    # request that hits these blocks receives the label (`WrittenAndRead`). "": no label.
    writer: str = ""
    marks: tuple[Mark, ...] = ()  # in order of their tokens
    question: int = 0  # tokens before the user's last message (`Welcome.has_states`); 0: unknown
    source: FetchSource | None = None  # engine to fetch uncached blocks from
    # True if this engine counts the prompt as looked up. Only one engine counts a prompt.
    is_counted: bool = True

    # Whether drafts may be verified, which does not change the answer.
    drafts: bool = True
    # With `embeds` or `candidates`, `max_tokens` is 0, and `Finished` has the values of the
    # prompt's last token.
    embeds: bool = False  # report the hidden state
    candidates: bytes = b""  # int32, little endian: tokens whose logits are reported
    prediction: bytes = b""  # int32, little endian: tokens of an expected answer, to draft from
    adapter: AdapterUse | None = None  # None: the model alone
    modules: tuple[PromptModule, ...] = ()  # modules before the tokens (`Welcome.has_modules`)
    positions: bytes = b""  # int32, little endian, of each token; empty: 0, 1, 2, ...
    target_itl_s: float = 0.0  # target for gaps between tokens in seconds; 0: the engine's target

    @property
    def prompt_tokens(self) -> int:
        """The number of the prompt's tokens, including tokens of its modules."""
        before = sum(len(one.whole) for one in self.modules)
        return before + len(self.token_ids) // _ID_BYTES


class FlowQuota(msgspec.Struct, frozen=True, array_like=True):
    """The quota of a flow in each tier: shares of the tier, weight, and maximum request."""

    floor: Annotated[float, Meta(ge=0, le=1)] = 0.0
    ceiling: Annotated[float, Meta(ge=0, le=1)] = 1.0
    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    max_request_tokens: Annotated[int, Meta(ge=0)] = 0  # prompt plus answer; 0: context length


class Partition(msgspec.Struct, frozen=True, kw_only=True, tag="partition"):
    """An order to divide each tier of the cache among these flows by fair shares.

    The order replaces the partition sent before. Without any flow, flows share all tiers
    (`Generate.cache_quota`). Otherwise a flow that is not named has no part. The order is not
    answered, and may be repeated.
    """

    flows: dict[str, FlowQuota]


class RecordedFlushes(msgspec.Struct, frozen=True, kw_only=True, tag="flushes"):
    """All flushes ever recorded: flush id to flow, or to None for a flush of everything.

    The engine does the flushes that its cache and disk have not done yet. A gateway sends this
    message first after the welcome, and later with new flushes. The message is not answered, and
    may be repeated.
    """

    flushes: dict[str, str | None]


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """An order to cancel a request: its client left, or a stop string came.

    The reply is `Finished("cancelled")`.
    """

    request_id: str


ToEngine = (
    Hello | RecordedFlushes | Partition | Generate | Cancel | Subscribe | EventsTaken | QueryMessage
)


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """The description of the engine. `engine_id` is new for every start of the process."""

    engine_id: str
    fingerprint: bytes
    vocab_size: int
    block_size: int
    max_model_len: int  # tokens: the model's context or the pool, whichever is smaller
    eos_token_ids: tuple[int, ...]
    device: str
    dtype: str
    exchange_address: str | None = None
    role: Role = "both"  # a hint to gateways; the engine serves every request
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    has_states: bool = False  # True with recurrent layers, where a cache hit ends at a kept state
    hidden_size: int = 0  # number of values of an embedding
    has_head: bool = True  # False: prompts are only embedded, since tokens have no logits
    has_modules: bool = False  # prompts may consist of prompt modules


FromEngine = Welcome | StepReply | CacheEvents | ReplyMessage
