"""Requests that other projects' tests recorded are answered, and official clients read the answers.

The model may call no tools of its own accord. Where a request prescribes the answer's form
(a schema, for example), the answer is a random one of that form.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from google.genai import types as gemini
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

from tests.doubles.gateway.served import MODEL
from tests.zoo.answers.recorded import Recorded, recorded
from tests.zoo.families import family
from tests.zoo.gateways import ZooGateway
from tests.zoo.grammars.test_held_answers import Held, walking
from tests.zoo.sources import RECORDED, Sdist

# words of the refusals that the documentation names
_REFUSED = re.compile(
    "not images, audio|this model reads text|inlineData|`image`|`document`|maximum context length"
    "|`input.[0-9]..output`: Expected|`functions` is not supported|no such response to continue"
    "|`include` is not supported|this `tool_choice` needs `tools`"
)
_SAID = "<think>\nHm.\n</think>\n\nFine then."


def _refusal(zoo: ZooGateway, request: Recorded) -> str:
    """Send a request, and read the whole answer strictly as its official client does.

    Returns the refusal, or "" if the request was answered.
    """
    try:
        _answer(zoo, request)
    except (openai.BadRequestError, anthropic.BadRequestError, httpx.HTTPStatusError) as refused:
        return str(refused.response.text)
    return ""


def _answer(zoo: ZooGateway, request: Recorded) -> None:
    streams = bool(request.body.get("stream"))
    sent: dict[str, Any] = {"body": request.body, "stream": streams}
    key: str = zoo.served.key
    strict: Any = {"max_retries": 0, "_strict_response_validation": True}
    own = openai.OpenAI(base_url=f"{zoo.served.url}/v1", api_key=key, **strict)
    other = anthropic.Anthropic(base_url=zoo.served.url, api_key=key, **strict)
    match request.path:
        case "/v1/chat/completions":
            answer: Any = own.post(
                "/chat/completions",
                cast_to=ChatCompletion,
                stream_cls=openai.Stream[ChatCompletionChunk],
                **sent,
            )
        case "/v1/responses":
            events: Any = ResponseStreamEvent
            answer = own.post(
                "/responses", cast_to=Response, stream_cls=openai.Stream[events], **sent
            )
        case "/v1/messages":
            answer = other.post(
                "/v1/messages",
                cast_to=anthropic.types.Message,
                stream_cls=anthropic.Stream[anthropic.types.RawMessageStreamEvent],
                **sent,
            )
        case _:
            _answer_of_gemini(zoo, request)
            return
    if streams:
        assert list(answer)


def _answer_of_gemini(zoo: ZooGateway, request: Recorded) -> None:
    headers = {"x-goog-api-key": zoo.served.key}
    answer = httpx.post(zoo.served.url + request.path, json=request.body, headers=headers)
    answer.raise_for_status()
    whole = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    for one in whole if "alt=sse" in request.path else [answer.text]:
        read = json.loads(one)
        read.pop("ratoon", None)  # which the client drops
        gemini.GenerateContentResponse.model_validate(read)


def _is_shown(text: str, prompt: str) -> bool:
    """Return whether each line of a text is in the prompt, perhaps written as JSON."""
    lines = [line.strip() for line in text.splitlines()]
    return all(line in prompt or json.dumps(line)[1:-1] in prompt for line in lines)


@pytest.mark.zoo
@pytest.mark.parametrize("package", RECORDED, ids=lambda one: one.name)
def test_recorded_requests_are_answered(package: Sdist, tmp_path: Path) -> None:
    answered = 0
    with walking(Held(family("qwen3")), tmp_path, real=False) as zoo:
        walk, said = zoo.engine.script, zoo.ids(_SAID)
        zoo.engine.script = lambda one: walk(one) if one.sampling.grammar else said
        for request in recorded(package, MODEL):
            refusal = _refusal(zoo, request)
            if refusal:
                assert _REFUSED.search(refusal), (request.file, refusal)
                continue
            answered += 1
            prompt = zoo.prompt()
            hidden = [text for text in request.texts() if not _is_shown(text, prompt)]
            assert not hidden, (request.file, hidden)
    assert answered > 10
