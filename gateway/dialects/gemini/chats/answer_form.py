"""The form of an answer: the functions that may or must be called, and the text's schema."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from engine.link.messages import Grammar
from gateway.dialects.gemini.chats.schemas import closed, json_schema
from gateway.dialects.gemini.parts import listed
from gateway.dialects.gemini.schema import FunctionCalling, GeminiGenerationConfig, GeminiPrompt
from gateway.dialects.tool_choice import must_call, only
from gateway.errors import BadRequest
from gateway.prompts.chats.chat_json import unsupported
from gateway.prompts.form_length import bounded
from gateway.prompts.generation_request import AnswerForm
from gateway.turn_formats.turn_format import ToolSpec

_CALLING = "toolConfig.functionCallingConfig"
_CONFIG = "generationConfig"
_ANY_JSON: dict[str, Any] = {"anyOf": [{"type": "object"}, {"type": "array"}]}


def answer_form(wire: GeminiPrompt, specs: Sequence[ToolSpec]) -> AnswerForm:
    """Return the form of the answer to `wire`; raise BadRequest for contradictory fields."""
    config = wire.generation_config or GeminiGenerationConfig()
    text, param = _text(config)
    form = AnswerForm(tuple(specs), text=text, text_param=param)
    settings = wire.tool_config
    calling = None if settings is None else settings.function_calling_config
    return form if calling is None else _called(form, calling)


def _called(form: AnswerForm, calling: FunctionCalling) -> AnswerForm:
    mode, names = (calling.mode or "AUTO").upper(), listed(calling.allowed_function_names)
    if mode == "NONE":
        return replace(form, most_calls=0)
    if mode not in ("AUTO", "MODE_UNSPECIFIED", "ANY", "VALIDATED"):
        raise unsupported(f"{_CALLING}.mode", "it is AUTO, ANY, VALIDATED or NONE")
    unknown = set(names) - {tool.name for tool in form.tools}
    if unknown:
        raise BadRequest(
            "this names a function that is not declared", param=f"{_CALLING}.allowedFunctionNames"
        )
    if mode == "VALIDATED":
        strict = tuple(msgspec.structs.replace(tool, strict=True) for tool in form.tools)
        form = replace(form, tools=strict)
    if mode == "ANY" and not form.tools:
        raise BadRequest("this mode needs functions to call", param=f"{_CALLING}.mode")
    if names:
        return only(form, names, least_calls=int(mode == "ANY"))
    return must_call(form) if mode == "ANY" else form


def _text(config: GeminiGenerationConfig) -> tuple[Grammar | None, str | None]:
    mime = (config.response_mime_type or "").partition(";")[0].strip().lower()
    schema, param = _schema(config)
    if mime == "text/x.enum":
        return _one_of(schema, param), param
    if mime in ("", "text/plain", "application/json"):
        if schema is None and mime != "application/json":
            return None, None
        text = msgspec.json.encode(_ANY_JSON if schema is None else schema).decode()
        return Grammar("json_schema", bounded(param, text)), param
    raise unsupported(
        f"{_CONFIG}.responseMimeType", "it is text/plain, application/json or text/x.enum"
    )


def _schema(config: GeminiGenerationConfig) -> tuple[dict[str, Any] | bool | None, str]:
    if config.response_json_schema is not None:
        return config.response_json_schema, f"{_CONFIG}.responseJsonSchema"
    if config.response_schema is not None:
        where = f"{_CONFIG}.responseSchema"
        return closed(json_schema(config.response_schema, where)), where
    return None, f"{_CONFIG}.responseMimeType"


def _one_of(schema: dict[str, Any] | bool | None, param: str) -> Grammar:
    texts = schema.get("enum") if isinstance(schema, dict) else None
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise BadRequest("text/x.enum needs a schema with an `enum` of texts", param=param)
    return Grammar("lark", bounded(param, f"start: {' | '.join(map(json.dumps, texts))}"))
