"""What `/openapi.json` says of OpenAI's routes: the Structs that are really parsed and sent.

FastAPI would describe pydantic models; here the bodies are msgspec's.

Knows: schemas. Does not know: paths.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.openai.errors import ErrorReply
from gateway.openai.replies import (
    ChatChunk,
    ChatCompletion,
    Completion,
    Detokenized,
    Model,
    ModelList,
    Tokenized,
)
from gateway.openai.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

_REF = "#/components/schemas/{name}"
_TYPES = (
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
    Detokenized,
    DetokenizeRequest,
    ErrorReply,
    Model,
    ModelList,
    Tokenized,
    TokenizeRequest,
)


def described(reply: type, request: type | None = None) -> dict[str, Any]:
    """What to add to a route that answers with `reply` to a body like `request`."""
    extra: dict[str, Any] = {
        "responses": {
            "200": {"description": "The answer", "content": _json(reply)},
            "default": {"description": "An error", "content": _json(ErrorReply)},
        }
    }
    if request is not None:
        extra["requestBody"] = {"required": True, "content": _json(request)}
    return extra


def schemas() -> dict[str, Any]:
    """All schemas that `described` refers to."""
    _, components = msgspec.json.schema_components(_TYPES, ref_template=_REF)
    return dict(components)


def _json(struct: type) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(name=struct.__name__)}}}
