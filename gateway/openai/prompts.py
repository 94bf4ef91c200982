"""The `prompt` of a text completion: a text, token ids, or a batch of either.

Token ids can be most of a request's bytes, and making a Python list of them would cost more than
all the rest of admission. So a plain list of ids is read from its JSON into an array at once; all
other prompts, and lists with a mistake in them, are parsed strictly like the rest of a body.

Knows: how a prompt is written. Does not know: the vocabulary or the context (`admission.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from gateway.admission import Prompt
from gateway.body import parse_part
from gateway.errors import BadRequest
from gateway.openai.schema import PromptPart
from gateway.tokenizer import TokenIds

_PART = msgspec.json.Decoder(PromptPart)
_MAX_ID = 2**31 - 1


def prompts_of(raw: msgspec.Raw) -> tuple[Prompt, ...]:
    """The prompts in `raw`, which is JSON; BadRequest for a wrong type, a mixture, or no prompt."""
    spelled = bytes(raw)
    token_ids = token_ids_in(spelled)
    if token_ids is not None:
        return (token_ids,)
    return _sorted_out(parse_part(_PART, b'{"prompt":%b}' % spelled).prompt)


def token_ids_in(spelled: bytes) -> TokenIds | None:
    """int32 ids of a list of natural numbers; None for anything else and for an empty list.

    `spelled` must be valid JSON: a list of only digits, commas and spaces is then such a list.
    """
    inner = spelled[1:-1]
    between = inner.translate(None, b"0123456789")
    rest = between.translate(None, b",")
    if rest.translate(None, b" ") or between == inner or not spelled.startswith(b"["):
        return None
    try:
        numbers = np.fromstring(inner, dtype=np.int64, sep=",")  # larger ids become the largest int
    except (DeprecationWarning, ValueError):
        return None  # a space before a comma; whether numpy minds depends on its release
    if len(numbers) != len(between) - len(rest) + 1 or numbers.max() > _MAX_ID:
        return None
    return numbers.astype(np.int32)


def _sorted_out(prompt: str | Sequence[str | int | list[int]]) -> tuple[Prompt, ...]:
    if isinstance(prompt, str):
        return _none_empty([prompt])
    if len(set(map(type, prompt))) > 1:
        raise BadRequest("`prompt` mixes texts and token ids", param="prompt")
    ids = [item for item in prompt if isinstance(item, int)]
    texts = [item for item in prompt if isinstance(item, str)]
    lists = [item for item in prompt if isinstance(item, list)]
    arrays = [np.array(item, dtype=np.int32) for item in ([ids] if ids else lists)]
    return _none_empty([*texts, *arrays])


def _none_empty(prompts: Sequence[str | TokenIds]) -> tuple[Prompt, ...]:
    if not prompts or not all(map(len, prompts)):
        raise BadRequest("the prompt is empty", param="prompt")
    return tuple(prompts)
