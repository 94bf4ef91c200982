"""The bytes in an answer's log-probabilities add up to its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.zoo.families import family
from tests.zoo.gateways import zoo_gateway

_SAID = "if x:\n    y  = 1  # \u00e9t\u00e9 \U0001d518 <table><td>1</td></table>\n\n\n"
_ASKED = [{"role": "user", "content": "Go."}]


@pytest.mark.parametrize(
    "name", ["mistral-7b", pytest.param("gemma3", marks=pytest.mark.zoo), "qwen3"]
)
def test_bytes_joined_are_the_text_whole_and_streamed(name: str, tmp_path: Path) -> None:
    with zoo_gateway(family(name), tmp_path, real=name != "qwen3") as zoo:
        zoo.says(_SAID)
        asked = {"model": "tiny", "messages": _ASKED, "logprobs": True, "top_logprobs": 2}
        whole = zoo.client.chat.completions.create(**asked).choices[0]  # type: ignore[call-overload]
        assert whole.message.content == _SAID
        assert _joined(whole.logprobs.content) == _SAID.encode()
        chunks = zoo.client.chat.completions.create(**asked, stream=True)  # type: ignore[call-overload]
        told = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices]
        assert sum(one is not None for one in told) > 1
        assert b"".join(_joined(one.content) for one in told if one) == _SAID.encode()


def _joined(content: list[object]) -> bytes:
    return b"".join(bytes(one.bytes) for one in content)  # type: ignore[attr-defined]
