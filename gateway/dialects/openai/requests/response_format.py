"""The field `response_format`, in the forms that clients of different servers send.

OpenAI's form is `json_schema: {"name": ..., "schema": {...}}`. `json_schema` may also be the schema
itself. Clients of llama.cpp, Together and Fireworks send the schema in `schema`. Clients of Hugging
Face send it in `value`. Fireworks' clients may send a `grammar`, and Together's a `regex` with a
`pattern`.

Elsewhere: which grammars exclude each other (`structured_outputs.py`).
"""

import re
from collections.abc import Iterator

import msgspec
from msgspec import Raw

from engine.link.messages import Grammar
from gateway.dialects.openai.requests.schema import NamedSchema, ResponseFormat
from gateway.errors import BadRequest
from gateway.http.bodies.body import check_inner, parse_part
from gateway.prompts.chats.chat_json import unsupported
from gateway.prompts.form_length import bounded

OBJECT = Grammar("json_schema", '{"type": "object"}')
Found = Iterator[tuple[str, Grammar]]  # grammars, each with its field's name

_NAMED = set(NamedSchema.__struct_fields__)
_NAMED_SCHEMA = msgspec.json.Decoder(NamedSchema)
_FIELDS = msgspec.json.Decoder(dict[str, Raw])
# `\s` would match line ends. Each line of a run of empty lines would then scan the run again.
_GBNF_RULE = re.compile(r"^[ \t]*[\w-]+\s*::=", re.MULTILINE)
_LARK_RULE = re.compile(r"^[ \t]*(?:%llguidance\b|[?!]?[\w-]+(?:\[[^\]\n]*\])?\s*:)", re.MULTILINE)


def schemas_of(where: str, asked: ResponseFormat) -> Found:
    """Yield each JSON schema of the format, from each field that may hold it."""
    yield from _named(f"{where}.json_schema", asked.json_schema)
    yield from schema_of(f"{where}.schema", asked.schema)
    yield from _named(f"{where}.value", asked.value)


def other_than_json(where: str, asked: ResponseFormat) -> tuple[str, Grammar]:
    """Return the format's grammar and its field.

    Raises BadRequest if the grammar is missing or has a wrong type.
    """
    match asked.type:
        case "grammar":
            fields = {"grammar": asked.grammar}
        case "regex":
            fields = {"pattern": asked.pattern, "value": _text(asked.value)}
        case _:
            raise unsupported(f"{where}.type")
    for name, text in fields.items():
        if text is not None:
            param, is_grammar = f"{where}.{name}", asked.type == "grammar"
            text = bounded(param, text)
            return param, grammar_of(text) if is_grammar else Grammar("regex", text)
    raise missing(where, asked.type, next(iter(fields)))


def missing(where: str, kind: str, field: str) -> BadRequest:
    """Make the error for a format without the `field` that its type needs."""
    return BadRequest(
        f"`{where}` of type `{kind}` has no `{field}`",
        code="missing_required_parameter",
        param=f"{where}.{field}",
    )


def grammar_of(text: str) -> Grammar:
    """Read a grammar as GBNF (also called EBNF) or Lark, by the form of its rules."""
    is_lark = not _GBNF_RULE.search(text) and _LARK_RULE.search(text)
    return Grammar("clients_lark" if is_lark else "gbnf", text)


def schema_of(param: str, asked: Raw) -> Found:
    """Yield the JSON schema in `asked`: an object, a boolean, or JSON text of either."""
    spelled = spelled_json(param, asked)
    if not spelled:
        return
    text = bounded(param, spelled.decode())
    try:
        is_schema = isinstance(msgspec.json.decode(spelled), dict | bool)
    except msgspec.DecodeError:
        is_schema = False
    if not is_schema:
        raise BadRequest(f"`{param}` is not a JSON schema", param=param)
    yield param, Grammar("json_schema", text)


def spelled_json(param: str, asked: Raw) -> bytes:
    """Return `asked`, or the JSON within a JSON string; empty bytes if nothing was requested."""
    spelled = bytes(asked)
    if spelled in (b"", b"null"):
        return b""
    if not spelled.startswith(b'"'):
        return spelled
    try:
        spelled = msgspec.json.decode(spelled, type=str).encode()
    except msgspec.DecodeError:  # the string has half of a surrogate pair
        raise BadRequest(f"`{param}` is not valid JSON", param=param) from None
    check_inner(spelled, param)
    return spelled


def _named(param: str, asked: Raw) -> Found:
    spelled = spelled_json(param, asked)
    try:
        fields = _FIELDS.decode(spelled) if spelled else {}
    except msgspec.DecodeError:  # `asked` is a boolean, or no schema
        fields = {"": asked}
    if not fields.keys() <= _NAMED:
        yield from schema_of(param, asked)
    elif fields:
        yield from schema_of(f"{param}.schema", _parsed(param, spelled).schema)


def _parsed(param: str, spelled: bytes) -> NamedSchema:
    try:
        return parse_part(_NAMED_SCHEMA, spelled)
    except BadRequest as error:
        at = f"{param}.{error.param}" if error.param else param
        raise BadRequest(f"`{at}`: {error.message}", code=error.code, param=at) from None


def _text(asked: Raw) -> str | None:
    try:
        return msgspec.json.decode(asked, type=str | None) if bytes(asked) else None
    except msgspec.DecodeError:
        return None
