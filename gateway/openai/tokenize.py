"""`/tokenize` and `/detokenize`, with the fields of vLLM's routes of these names.

Knows: their fields. Does not know: the tokenizer.
"""

from __future__ import annotations

import msgspec

from gateway.admission import Admission, Prompt
from gateway.body import parse_part
from gateway.config import Bounds
from gateway.errors import BadRequest
from gateway.openai.chat import chat_of
from gateway.openai.refusals import refuse_many, refuse_unsupported
from gateway.openai.replies import Detokenized, Tokenized
from gateway.openai.schema import DetokenizeRequest, TokenizeRequest, TokensAlone, TokensPart
from gateway.openai.tools import tools_of

_ALONE = msgspec.json.Decoder(TokensAlone)
_TOKENS = msgspec.json.Decoder(TokensPart)


def tokens_in(body: bytes) -> bytes:
    """The token ids of a body, as they are spelled; empty where there are none."""
    return bytes(_ALONE.decode(body).tokens)


async def tokenize(wire: TokenizeRequest, admission: Admission, bounds: Bounds) -> Tokenized:
    """The token ids of a text or of a chat, as a completion of it would have them."""
    prompt = _prompt(wire, bounds)
    add_special_tokens = wire.add_special_tokens
    if add_special_tokens is None:
        add_special_tokens = isinstance(prompt, str)
    token_ids = await admission.tokenize(prompt, add_special_tokens=add_special_tokens)
    tokens: list[int] = token_ids.tolist()
    strings = [admission.tokenizer.bytes_of(token).decode(errors="replace") for token in tokens]
    return Tokenized(
        count=len(tokens),
        max_model_len=admission.engine_limits().max_model_len,
        tokens=tokens,
        token_strs=strings if wire.return_token_strs else None,
    )


async def detokenize(wire: DetokenizeRequest, admission: Admission) -> Detokenized:
    """The text of token ids, at most as many as the model's context holds.

    They are counted before they are parsed: millions of them would hold up everybody else.
    """
    spelled, most = bytes(wire.tokens), admission.engine_limits().max_model_len
    if spelled.count(b",") >= most:
        raise BadRequest(
            f"`tokens` has more ids than the model's context of {most}",
            code="context_length_exceeded",
            param="tokens",
        )
    tokens = parse_part(_TOKENS, b'{"tokens":%b}' % spelled).tokens
    return Detokenized(await admission.detokenize(tokens))


def _prompt(wire: TokenizeRequest, bounds: Bounds) -> Prompt:
    if (wire.prompt is None) == (wire.messages is None):
        raise BadRequest("give either `prompt` or `messages`", param="prompt")
    if wire.messages is not None:
        refuse_many(wire.messages, bounds.max_messages)
        for place, message in enumerate(wire.messages):
            refuse_unsupported(message, f"messages[{place}].")
        return chat_of(wire.messages, wire)
    if tools_of(wire.tools):
        raise BadRequest("`tools` need `messages`", param="tools")
    return wire.prompt or ""
