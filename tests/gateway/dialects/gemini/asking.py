"""Requests for the tests of Gemini's dialect, and accessors for what the engine and the client
receive.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
from google import genai
from google.genai import types

from tests.doubles.engine.fake_engine import FakeEngine, prompt_of
from tests.doubles.engine.tiny_model import BOS, TURN
from tests.doubles.gateway.served import MODEL

CLOCK: dict[str, Any] = {
    "name": "clock",
    "description": "tells the time",
    "parameters": {"type": "OBJECT", "properties": {"zone": {"type": "STRING"}}},
}
CALL = '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>'
PATH = f"/v1beta/models/{MODEL}"


def ask(client: genai.Client, contents: Any = "hi", **config: Any) -> types.GenerateContentResponse:
    """Send "hi" and ask for at most 400 tokens, unless `config` says otherwise; return the
    answer.
    """
    settings = types.GenerateContentConfig(**{"max_output_tokens": 400, **config})
    answer: types.GenerateContentResponse = client.models.generate_content(
        model=MODEL, contents=contents, config=settings
    )
    return answer


def streamed(
    client: genai.Client, contents: Any = "hi", **config: Any
) -> list[types.GenerateContentResponse]:
    """Send the request as a stream; return the stream's chunks."""
    settings = types.GenerateContentConfig(**{"max_output_tokens": 400, **config})
    chunks = client.models.generate_content_stream(model=MODEL, contents=contents, config=settings)
    return list(chunks)


def parts_of(answer: types.GenerateContentResponse, candidate: int = 0) -> list[types.Part]:
    """Return the parts of a candidate's content."""
    assert answer.candidates is not None
    content = answer.candidates[candidate].content
    assert content is not None
    assert content.role == "model"
    return content.parts or []


def reason_of(answer: types.GenerateContentResponse, candidate: int = 0) -> str | None:
    """Return a candidate's finish reason; None if the candidate has not finished."""
    assert answer.candidates is not None
    reason = answer.candidates[candidate].finish_reason
    return None if reason is None else reason.value


def usage_of(answer: types.GenerateContentResponse) -> types.GenerateContentResponseUsageMetadata:
    """Return the usage that an answer reports."""
    assert answer.usage_metadata is not None
    return answer.usage_metadata


def post(http: httpx.Client, method: str = "generateContent", **fields: Any) -> httpx.Response:
    """Send the request over HTTP."""
    body = {"contents": [{"parts": [{"text": "hi"}]}], **fields}
    return http.post(f"{PATH}:{method}", json=body)


def shown(engine: FakeEngine) -> str:
    """Return the prompt of the last request, with `|` at the beginning of each turn."""
    ids = prompt_of(engine.requests[-1])
    assert ids[0] == BOS
    return bytes(ord("|") if one == TURN else one for one in ids[1:]).decode()


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """Return the events of a stream."""
    frames = [frame for frame in answer.text.split("\n\n") if frame]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def error_of(answer: httpx.Response, code: int, status: str) -> dict[str, Any]:
    """Return an answer's error; check that it has all of Google's error fields."""
    assert answer.status_code == code, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(answer.json()) == {"error"}
    assert (error["code"], error["status"]) == (code, status)
    return error


def param_of(error: dict[str, Any]) -> str | None:
    """Return the field that an error names."""
    found = [one for one in error["details"] if one["@type"].endswith(".BadRequest")]
    return found[0]["fieldViolations"][0]["field"] if found else None
