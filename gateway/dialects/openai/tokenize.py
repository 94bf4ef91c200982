"""The routes `/tokenize` and `/detokenize`, with the fields of vLLM's routes of these names.

Each call counts as a request. Its tokens are not charged, because no engine computes them.
"""

import msgspec
import numpy as np

from engine.link.messages import Welcome
from gateway.caller import Caller
from gateway.config import Bounds
from gateway.dialects.openai.answers.model_replies import Detokenized, Tokenized
from gateway.dialects.openai.requests.chat import chat_of
from gateway.dialects.openai.requests.schema import DetokenizeRequest, TokenId, TokenizeRequest
from gateway.errors import BadRequest
from gateway.http.bodies.body import Body, Part, parse_part
from gateway.processes.fair_executor import Steps
from gateway.prompts.chats.chat_json import refuse_unsupported
from gateway.prompts.chats.chat_tools import SentTools
from gateway.prompts.generation_request import Prompt
from gateway.prompts.pipeline.admission import Admission
from gateway.prompts.pipeline.tokenised import check_ids
from gateway.prompts.tokens.tokenizer import TokenIds, Tokenizer

_AT_ONCE = 1 << 12  # number of tokens to decode at once, which takes some milliseconds
# bytes of token ids' JSON that take as long to parse as one character takes to tokenise
_BYTES_PER_CHARACTER = 4


class _Alone(msgspec.Struct, frozen=True):
    tokens: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class _Tokens(msgspec.Struct, frozen=True):
    tokens: list[TokenId]


_ALONE = msgspec.json.Decoder(_Alone)
_TOKENS = msgspec.json.Decoder(_Tokens)


def tokens_in(body: Body) -> Part:
    """Find the JSON of a body's token ids; return empty bytes if the ids are missing."""
    return memoryview(_ALONE.decode(body).tokens)


async def tokenize(
    wire: TokenizeRequest, caller: Caller, admission: Admission, bounds: Bounds, size: int
) -> bytes:
    """Tokenise a text or a chat as a completion request would; return JSON.

    `size` is the work of reading the chat in `wire`, in units of one tokenised character.
    """
    prompt = await admission.off_the_loop(caller, _prompt(wire, bounds), size)
    salt = wire.cache_salt
    special, with_strings = wire.add_special_tokens, wire.return_token_strs is True
    del wire
    context = (await admission.engine()).max_model_len

    def show(token_ids: TokenIds) -> Steps[bytes]:
        tokens: list[int] = token_ids.tolist()
        strings: list[str] | None = None
        if with_strings:
            strings = yield from _strings(tokens, admission.tokenizer)
        return msgspec.json.encode(
            Tokenized(count=len(tokens), max_model_len=context, tokens=tokens, token_strs=strings)
        )

    return await admission.tokenize(
        prompt,
        caller,
        show,
        add_special_tokens=isinstance(prompt, str) if special is None else special,
        salt=salt,
    )


def _strings(tokens: list[int], tokenizer: Tokenizer) -> Steps[list[str]]:
    strings: list[str] = []
    for start in range(0, len(tokens), _AT_ONCE):
        some = tokens[start : start + _AT_ONCE]
        strings += [tokenizer.bytes_of(token).decode(errors="replace") for token in some]
        if len(tokens) > _AT_ONCE:
            yield
    return strings


async def detokenize(wire: DetokenizeRequest, caller: Caller, admission: Admission) -> bytes:
    """Decode token ids, at most as many as the model's context holds; return JSON."""
    welcome = await admission.engine()
    size = len(memoryview(wire.tokens)) // _BYTES_PER_CHARACTER
    work = _detokenized(wire.tokens, admission.tokenizer, welcome)
    del wire
    return await admission.off_the_loop(caller, work, size)


def _detokenized(raw: msgspec.Raw, tokenizer: Tokenizer, welcome: Welcome) -> Steps[bytes]:
    """Decode the token ids in `raw`. First count the ids, since parsing millions takes seconds."""
    spelled = bytes(raw)
    if spelled.count(b",") >= welcome.max_model_len:
        raise BadRequest(
            f"`tokens` has more ids than the model's context of {welcome.max_model_len}",
            code="context_length_exceeded",
            param="tokens",
        )
    tokens = parse_part(_TOKENS, b'{"tokens":%b}' % spelled).tokens
    check_ids(np.array(tokens, dtype=np.int32), welcome.vocab_size, "tokens")
    if len(tokens) > _AT_ONCE:
        yield
    text = tokenizer.decode(tokens, skip_special_tokens=False)
    return msgspec.json.encode(Detokenized(text))


def _prompt(wire: TokenizeRequest, bounds: Bounds) -> Steps[Prompt]:
    yield from ()
    refuse_unsupported(wire)
    if (wire.prompt is None) == (wire.messages is None):
        raise BadRequest("give either `prompt` or `messages`", param="prompt")
    if wire.messages is not None:
        return chat_of(wire.messages, wire, SentTools.of(wire.tools), bounds)
    if SentTools.of(wire.tools).forms:
        raise BadRequest("`tools` need `messages`", param="tools")
    return wire.prompt or ""
