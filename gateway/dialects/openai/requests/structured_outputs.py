"""The grammar that a text answer must follow, in each form that clients send.

`response_format` is OpenAI's field. `structured_outputs` and the older `guided_*` are vLLM's.
`regex`, `ebnf` and `json_schema` are SGLang's. `grammar` and `json_schema` are llama.cpp's. A
request may have several of these fields if they ask for the same grammar.
"""

import json
from collections.abc import Iterator

import msgspec

from engine.grammars.schemas.json_value import canonical
from engine.link.messages import Grammar
from gateway.dialects.openai.requests.response_format import (
    OBJECT,
    grammar_of,
    missing,
    other_than_json,
    schema_of,
    schemas_of,
    spelled_json,
)
from gateway.dialects.openai.requests.schema import Generating, ResponseFormat, StructuredOutputs
from gateway.errors import BadRequest
from gateway.http.bodies.body import parse_part
from gateway.prompts.chats.chat_json import refuse_unsupported
from gateway.prompts.form_length import bounded, check_length
from gateway.prompts.generation_request import AnswerForm, TextGrammar
from gateway.turn_formats.structural_tag import StructuralTag

Asked = Iterator[tuple[str, TextGrammar]]  # grammars, each with its field's name

_TAG = msgspec.json.Decoder(StructuralTag)


def text_form(wire: Generating) -> AnswerForm:
    """Read the form of a text answer; raise BadRequest for a wrong grammar, or several grammars."""
    asked = _different(list(_grammars(wire)))
    if len(asked) > 1:
        names = " and ".join(f"`{param}`" for param, _ in asked)
        raise BadRequest(f"{names} exclude each other", param=asked[1][0])
    if not asked:
        return AnswerForm()
    [(param, grammar)] = asked
    return AnswerForm(text=grammar, text_param=param)


def _different(asked: list[tuple[str, TextGrammar]]) -> list[tuple[str, TextGrammar]]:
    """Drop repeated grammars. Also drop "any object" if another JSON schema asks for objects."""
    if len(asked) < 2:
        return asked
    found = {_compared(grammar): (param, grammar) for param, grammar in reversed(asked)}
    any_object = _compared(OBJECT)
    if any(_is_of_objects(grammar) for key, (_, grammar) in found.items() if key != any_object):
        found.pop(any_object, None)
    return [one for one in asked if one in found.values()]


def _compared(grammar: TextGrammar) -> object:
    if isinstance(grammar, Grammar) and grammar.kind == "json_schema":
        return canonical(json.loads(grammar.text))
    return msgspec.json.encode(grammar)


def _is_of_objects(grammar: TextGrammar) -> bool:
    if not isinstance(grammar, Grammar) or grammar.kind != "json_schema":
        return False
    schema = json.loads(grammar.text)
    return isinstance(schema, dict) and schema.get("type") == "object"


def _grammars(wire: Generating) -> Asked:
    if wire.response_format is not None:
        yield from _of_format("response_format", wire.response_format)
    if wire.structured_outputs is not None:
        yield from _of_outputs("structured_outputs", wire.structured_outputs)
    for param, schema in (("guided_json", wire.guided_json), ("json_schema", wire.json_schema)):
        yield from schema_of(param, schema)
    for param, regex in (("guided_regex", wire.guided_regex), ("regex", wire.regex)):
        yield from _of_regex(param, regex)
    yield from _of_choice("guided_choice", wire.guided_choice)
    for param in ("guided_grammar", "ebnf", "grammar"):
        yield from _of_grammar(param, getattr(wire, param))


def _of_format(where: str, asked: ResponseFormat) -> Asked:
    match asked.type:
        case "text":
            return
        case "json_object" | "json":
            yield from list(schemas_of(where, asked)) or [(where, OBJECT)]
        case "json_schema":
            found = list(schemas_of(where, asked))
            if not found:
                raise missing(where, "json_schema", "json_schema.schema")
            yield from found
        case "structural_tag":
            parts = {name: getattr(asked, name) for name in StructuralTag.__struct_fields__}
            sent = {name: raw for name, raw in parts.items() if bytes(raw) not in (b"", b"null")}
            yield where, _tag(where, msgspec.json.encode(sent))
        case _:
            yield other_than_json(where, asked)


def _of_outputs(where: str, asked: StructuredOutputs) -> Asked:
    refuse_unsupported(asked, f"{where}.")
    found = [
        *schema_of(f"{where}.json", asked.json),
        *_of_regex(f"{where}.regex", asked.regex),
        *_of_choice(f"{where}.choice", asked.choice),
        *_of_grammar(f"{where}.grammar", asked.grammar),
        *_of_tag(f"{where}.structural_tag", asked.structural_tag),
    ]
    if asked.json_object:
        found.append((f"{where}.json_object", OBJECT))
    if not found:
        raise BadRequest(f"`{where}` says nothing that is to be followed", param=where)
    yield from found


def _of_tag(param: str, asked: msgspec.Raw) -> Asked:
    spelled = spelled_json(param, asked)
    if spelled:
        yield param, _tag(param, spelled)


def _tag(param: str, spelled: bytes) -> StructuralTag:
    bounded(param, spelled.decode())
    try:
        tag = parse_part(_TAG, spelled)
    except BadRequest as error:
        at = f"{param}.{error.param}" if error.param else param
        raise BadRequest(f"`{param}`: {error.message}", code=error.code, param=at) from None
    problem = tag.problem()
    if problem is not None:
        raise BadRequest(f"`{param}`: {problem}", param=param)
    return tag


def _of_regex(param: str, text: str | None) -> Asked:
    if text is not None:
        yield param, Grammar("regex", bounded(param, text))


def _of_grammar(param: str, text: str | None) -> Asked:
    if text is not None:
        yield param, grammar_of(bounded(param, text))


def _of_choice(param: str, choices: list[str] | None) -> Asked:
    if choices is None:
        return
    check_length(f"`{param}`", sum(map(len, choices)), param)
    if not choices or not all(choices):
        raise BadRequest(f"`{param}` needs texts to choose from", param=param)
    yield param, Grammar("lark", f"start: {' | '.join(map(json.dumps, choices))}")
