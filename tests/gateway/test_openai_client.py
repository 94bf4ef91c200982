"""The official client drives every route, as its users do."""

from __future__ import annotations

import openai
import pytest

from tests.doubles.fake_engine import FakeEngine, saying
from tests.doubles.served import MODEL


def test_chat(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("Hello, wörld 😀")
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}]
    )
    assert answer.choices[0].message.content == "Hello, wörld 😀"
