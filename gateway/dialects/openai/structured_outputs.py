"""The grammar that a text must follow, in each of the ways in which clients ask for one.

`response_format` is OpenAI's, `structured_outputs` vLLM's and `guided_*` its older names; `regex`,
`ebnf` and `json_schema` are SGLang's, `grammar` and `json_schema` llama.cpp's. A request may use
one of them.

Knows: fields. Does not know: which schemas can be followed (the engine compiles them).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec

from engine.link.messages import Grammar, GrammarKind
from gateway.dialects.openai.schema import Generating, ResponseFormat, StructuredOutputs
from gateway.errors import BadRequest
from gateway.http.body import check_inner, parse_part
from gateway.prompts.chat_json import refuse_unsupported, unsupported
from gateway.prompts.generation_request import AnswerForm, TextGrammar
from gateway.turn_formats.structural_tag import StructuralTag

Asked = Iterator[tuple[str, TextGrammar]]  # with the name of its field

_OBJECT = Grammar("json_schema", '{"type": "object"}')
_TAG = msgspec.json.Decoder(StructuralTag)


def text_form(wire: Generating) -> AnswerForm:
    """The form of an answer of text; BadRequest for several grammars, or for one with a mistake."""
    asked = list(_grammars(wire))
    if len(asked) > 1:
        names = " and ".join(f"`{param}`" for param, _ in asked)
        raise BadRequest(f"{names} exclude each other", param=asked[1][0])
    if not asked:
        return AnswerForm()
    [(param, grammar)] = asked
    return AnswerForm(text=grammar, text_param=param)


def _grammars(wire: Generating) -> Asked:
    if wire.response_format is not None:
        yield from _of_format("response_format", wire.response_format)
    if wire.structured_outputs is not None:
        yield from _of_outputs("structured_outputs", wire.structured_outputs)
    for param, schema in (("guided_json", wire.guided_json), ("json_schema", wire.json_schema)):
        yield from _of_json(param, schema)
    for param, regex in (("guided_regex", wire.guided_regex), ("regex", wire.regex)):
        yield from _of_text(param, "regex", regex)
    yield from _of_choice("guided_choice", wire.guided_choice)
    yield from _of_text("guided_grammar", "gbnf", wire.guided_grammar)
    yield from _of_text("ebnf", "gbnf", wire.ebnf)
    yield from _of_text("grammar", "gbnf", wire.grammar)


def _of_format(where: str, asked: ResponseFormat) -> Asked:
    match asked.type:
        case "text":
            return
        case "json_object":
            # Some clients send the schema with it.
            yield from list(_of_json(f"{where}.schema", asked.schema)) or [(where, _OBJECT)]
        case "json_schema":
            yield _of_named_schema(where, asked)
        case "structural_tag":
            parts = {name: getattr(asked, name) for name in StructuralTag.__struct_fields__}
            sent = {name: raw for name, raw in parts.items() if bytes(raw) not in (b"", b"null")}
            yield where, _tag(where, msgspec.json.encode(sent))
        case _:
            raise unsupported(f"{where}.type")


def _of_named_schema(where: str, asked: ResponseFormat) -> tuple[str, TextGrammar]:
    param = f"{where}.json_schema.schema"
    found = list(_of_json(f"{where}.schema", asked.schema))
    if asked.json_schema is not None:
        found = [*_of_json(param, asked.json_schema.schema), *found]
    if found:
        return found[0]
    raise BadRequest(
        "`response_format` of type `json_schema` has no `json_schema.schema`",
        code="missing_required_parameter",
        param=param,
    )


def _of_outputs(where: str, asked: StructuredOutputs) -> Asked:
    refuse_unsupported(asked, f"{where}.")
    found = [
        *_of_json(f"{where}.json", asked.json),
        *_of_text(f"{where}.regex", "regex", asked.regex),
        *_of_choice(f"{where}.choice", asked.choice),
        *_of_text(f"{where}.grammar", "gbnf", asked.grammar),
        *_of_tag(f"{where}.structural_tag", asked.structural_tag),
    ]
    if asked.json_object:
        found.append((f"{where}.json_object", _OBJECT))
    if not found:
        raise BadRequest(f"`{where}` says nothing that is to be followed", param=where)
    yield from found


def _of_json(param: str, asked: msgspec.Raw) -> Asked:
    """A JSON schema: an object, true or false, or a text that holds one."""
    spelled = _spelled(param, asked)
    if not spelled:
        return
    try:
        is_schema = isinstance(msgspec.json.decode(spelled), dict | bool)
    except msgspec.DecodeError:
        is_schema = False
    if not is_schema:
        raise BadRequest(f"`{param}` is not a JSON schema", param=param)
    yield param, Grammar("json_schema", spelled.decode())


def _of_tag(param: str, asked: msgspec.Raw) -> Asked:
    spelled = _spelled(param, asked)
    if spelled:
        yield param, _tag(param, spelled)


def _tag(param: str, spelled: bytes) -> StructuralTag:
    try:
        tag = parse_part(_TAG, spelled)
    except BadRequest as error:
        at = f"{param}.{error.param}" if error.param else param
        raise BadRequest(f"`{param}`: {error.message}", code=error.code, param=at) from None
    problem = tag.problem()
    if problem is not None:
        raise BadRequest(f"`{param}`: {problem}", param=param)
    return tag


def _spelled(param: str, asked: msgspec.Raw) -> bytes:
    """The JSON that was sent, or that a text holds; empty where there is none."""
    spelled = bytes(asked)
    if spelled in (b"", b"null"):
        return b""
    if not spelled.startswith(b'"'):
        return spelled
    try:
        spelled = msgspec.json.decode(spelled, type=str).encode()
    except msgspec.DecodeError:  # half of a surrogate pair
        raise BadRequest(f"`{param}` is not valid JSON", param=param) from None
    check_inner(spelled, param)
    return spelled


def _of_text(param: str, kind: GrammarKind, text: str | None) -> Asked:
    if text is not None:
        yield param, Grammar(kind, text)


def _of_choice(param: str, choices: list[str] | None) -> Asked:
    if choices is None:
        return
    if not choices or not all(choices):
        raise BadRequest(f"`{param}` needs texts to choose from", param=param)
    yield param, Grammar("lark", f"start: {' | '.join(map(json.dumps, choices))}")
