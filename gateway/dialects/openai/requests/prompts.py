"""The `prompt` of a completion or `input` of embeddings: a text, token ids, or a batch of either.

Token ids can be most of a request's bytes. A Python list of ids would cost more than all other work
of admission. A plain list of ids is therefore read from its JSON directly into an array. Other
prompts, and lists with a mistake, are parsed like all other fields. A list of ids that exceeds the
context, or a batch with too many prompts, is refused without being parsed.
"""

import re
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from gateway.dialects.openai.requests.sampling import at_most
from gateway.dialects.openai.requests.schema import TokenId
from gateway.errors import BadRequest
from gateway.http.bodies.body import Body, Part, count_separators, parse_part
from gateway.prompts.pipeline.tokenised import too_long
from gateway.prompts.tokens.tokenizer import TokenIds

Item = str | int | list[int] | TokenIds


Batch = str | list[str | TokenId | list[TokenId]]


class _Part(msgspec.Struct, frozen=True):
    prompt: Batch = ""
    input: Batch = ""


class _Alone(msgspec.Struct, frozen=True):
    prompt: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    input: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


PromptField = Literal["prompt", "input"]

_PART = msgspec.json.Decoder(_Part)
_ALONE = msgspec.json.Decoder(_Alone)
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_MAX_ID = 2**31 - 1
_ZERO, _COMMA, _SPACE = np.frombuffer(b"0, ", np.uint8)
_NUMBER_FIRST = re.compile(rb"\[\s*[-0-9]")


def prompt_in(body: Body) -> Part:
    """Find the JSON of the prompt in a completion's body; return empty bytes without a prompt."""
    return memoryview(_ALONE.decode(body).prompt)


def input_in(body: Body) -> Part:
    """Find the JSON of the input in an embeddings body; return empty bytes without an input."""
    return memoryview(_ALONE.decode(body).input)


def prompts_of(
    raw: msgspec.Raw, most: int, context: int, field: PromptField = "prompt"
) -> tuple[str | TokenIds, ...]:
    """Read the prompts in the JSON `raw` of `field`.

    Raises BadRequest for a wrong type, mixed types, no prompt, more than `most` prompts, or a list
    of ids that does not fit into `context` tokens.
    """
    spelled = bytes(raw)
    if not spelled.startswith(b"["):
        return _sorted_out(_strictly(spelled, field), field)
    token_ids = token_ids_in(spelled, context, field)
    if token_ids is not None:
        return (token_ids,)
    items = count_separators(spelled, depth=1) + 1
    if items > most and _NUMBER_FIRST.match(spelled):
        _refuse_long(spelled, context, field)
        # parsed only to raise the error that names the invalid id
        return _sorted_out(_strictly(spelled, field), field)
    at_most(field, items, most)
    parts = enumerate(_ITEMS.decode(spelled))
    return _sorted_out([_item(bytes(part), place, context, field) for place, part in parts], field)


def token_ids_in(spelled: bytes, context: int, field: PromptField = "prompt") -> TokenIds | None:
    """Read a JSON list of token ids as int32; return None for an empty list or any other value.

    `spelled` must be valid JSON. A list of only digits, commas and spaces is then a list of natural
    numbers. Raises BadRequest for `context` or more ids, before any number is read.
    """
    if not spelled.startswith(b"["):
        return None
    inner = memoryview(spelled)[1:-1]
    # once `_ZERO` is subtracted, characters below "0" are numbers above 10
    chars = np.frombuffer(inner, np.uint8)
    digits, commas, spaces = (
        int(np.count_nonzero(found))
        for found in (chars - _ZERO < 10, chars == _COMMA, chars == _SPACE)
    )
    if not digits or digits + commas + spaces < len(inner):
        return None
    ids = commas + 1
    if ids >= context:
        raise too_long(ids + 1, context, field)
    try:
        # numpy reads a number above the largest int64 as that int64, which is no valid id either.
        numbers = np.fromstring(bytes(inner), dtype=np.int64, sep=",")
    except (DeprecationWarning, ValueError):
        return None  # the list has a space before a comma, which only some numpy releases accept
    if len(numbers) != ids or numbers.max() > _MAX_ID:
        return None
    return numbers.astype(np.int32)


def _item(spelled: bytes, place: int, context: int, field: PromptField) -> Item:
    token_ids = token_ids_in(spelled, context, field)
    if token_ids is not None:
        return token_ids
    _refuse_long(spelled, context, field)
    # Zeros replace the earlier items, so that an error names this item's place.
    batch = _strictly(b"[%b%b]" % (b"0," * place, spelled), field)
    return batch[place]


def _strictly(spelled: bytes, field: PromptField) -> Batch:
    part = parse_part(_PART, b'{"%b":%b}' % (field.encode(), spelled))
    return part.prompt if field == "prompt" else part.input


def _refuse_long(spelled: bytes, context: int, field: PromptField) -> None:
    values = count_separators(spelled) + 1
    if values >= context:
        raise too_long(values + 1, context, field)


def _sorted_out(prompt: str | Sequence[Item], field: PromptField) -> tuple[str | TokenIds, ...]:
    if isinstance(prompt, str):
        prompt = [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    texts = [item for item in prompt if isinstance(item, str)]
    lists = [item for item in prompt if isinstance(item, list | np.ndarray)]
    if sum(map(bool, (ids, texts, lists))) > 1:
        raise BadRequest(f"`{field}` mixes texts and token ids", param=field)
    arrays = [np.asarray(item, dtype=np.int32) for item in ([ids] if ids else lists)]
    prompts: tuple[str | TokenIds, ...] = (*texts, *arrays)
    if not prompts or not all(map(len, prompts)):
        raise BadRequest(f"the {field} is empty", param=field)
    return prompts
