"""`ratoon cache probe` finds the prompts that `ratoon cache warm` computed. A bad file is a
one-line error.

The gateway is real, with a fake engine.
"""

from pathlib import Path

import msgspec
import pytest

from cli.asking.cached import body_of
from tests.cli.console import Console, Printed
from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import Served

CHAT = {"messages": [{"role": "user", "content": "What is a ratoon? " * 5}]}


@pytest.fixture
def file(console: Console, tmp_path: Path, engine: FakeEngine) -> Path:
    """Write a request without a model name to a file; empty the engine's cache."""
    engine.lose_cache()
    path = tmp_path / "request.json"
    path.write_bytes(msgspec.json.encode(CHAT))
    return path


def typed(console: Console, gateway: Served, line: str, answer: str = "") -> Printed:
    env = {"RATOON_URL": gateway.url, "RATOON_KEY": gateway.key}
    return console.type(*line.split(), env=env, answer=answer)


def test_what_is_warmed_is_found(console: Console, gateway: Served, file: Path) -> None:
    before = typed(console, gateway, f"cache probe {file} --json").json
    assert before["cached_tokens"] == 0
    assert before["prompt_tokens"] > 64
    said = typed(console, gateway, f"cache warm {file}").out
    total = before["prompt_tokens"]
    assert said == (
        f"The prompt is cached. Before, 0 of {total} prompt tokens were in the cache.\n"
    )
    after = typed(console, gateway, f"cache probe {file} --json").json
    assert after["cached_tokens"] > 0
    found = f"{after['cached_tokens']} of {total} prompt tokens were in the cache"
    assert typed(console, gateway, f"cache probe {file}").out.startswith(found)


def test_a_request_may_come_through_a_pipe(console: Console, gateway: Served) -> None:
    body = msgspec.json.encode({"prompt": "x" * 64}).decode()
    assert typed(console, gateway, "cache probe - --json", body).json["prompt_tokens"] == 65, (
        "and one to begin with"
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "is not JSON"), ("[]", "is not a JSON object"), ('{"messages": 1}', "messages")],
)
def test_a_file_that_is_no_request_is_one_line(
    content: str, words: str, console: Console, gateway: Served, file: Path
) -> None:
    file.write_text(content)
    printed = typed(console, gateway, f"cache warm {file}")
    assert printed.status == 1
    assert printed.out == ""
    assert words in printed.err


def test_a_file_that_is_not_there_is_named(console: Console, gateway: Served) -> None:
    assert "nowhere.json: No such file" in typed(console, gateway, "cache warm nowhere.json").err


def test_the_route_follows_from_the_body_or_is_given() -> None:
    assert body_of({"prompt": "x"}, None)["url"] == "/v1/completions"
    assert body_of({"messages": []}, None)["url"] == "/v1/chat/completions"
    assert body_of({"messages": []}, "messages")["url"] == "/v1/messages"
