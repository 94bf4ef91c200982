"""In every dialect, a request without sampling fields uses the defaults of the model's maker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.link.messages import SamplingParams
from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.engine.tiny_model import write_tiny_model
from tests.doubles.gateway.served import MODEL, Served, config_of, serving

GENERATION = {
    "temperature": 0.6,
    "top_p": 0.75,
    "top_k": 20,
    "min_p": 0.125,
    "repetition_penalty": 1.5,
    "max_new_tokens": 77,
}
MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi", "store": False},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 50},
}
# the dialect's default length, or the length that the request gives
OWN_LENGTH = {"/v1/completions": 16, "/v1/messages": 50}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    (directory / "generation_config.json").write_text(json.dumps(GENERATION))
    return directory


@pytest.fixture(scope="module")
def following(
    model_dir: Path, tmp_path_factory: pytest.TempPathFactory, module_engine: FakeEngine
) -> Iterator[Served]:
    with serving(config_of(model_dir, tmp_path_factory.mktemp("data")), module_engine) as served:
        yield served


@pytest.fixture(scope="module")
def ignoring(
    model_dir: Path, tmp_path_factory: pytest.TempPathFactory, module_engine: FakeEngine
) -> Iterator[Served]:
    config = config_of(model_dir, tmp_path_factory.mktemp("data"), generation_config="none")
    with serving(config, module_engine) as served:
        yield served


def asked(
    gateway: Served, engine: FakeEngine, path: str, **fields: Any
) -> tuple[SamplingParams, dict[str, Any]]:
    """Send a request; return the answer, and the sampling parameters that the engine got."""
    answer = httpx.post(
        gateway.url + path,
        json={"model": MODEL, **BODIES[path], **fields},
        headers={"Authorization": f"Bearer {gateway.key}"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    return engine.requests[-1].sampling, answer.json()


def settings(sampling: SamplingParams) -> tuple[float, ...]:
    return (
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        sampling.min_p,
        sampling.repetition_penalty,
    )


@pytest.mark.parametrize("path", BODIES)
def test_what_is_left_out_is_as_the_model_has_it(
    following: Served, engine: FakeEngine, path: str
) -> None:
    sampling, _ = asked(following, engine, path)
    assert settings(sampling) == (0.6, 0.75, 20, 0.125, 1.5)
    assert sampling.max_tokens == OWN_LENGTH.get(path, 77)


@pytest.mark.parametrize("path", BODIES)
def test_what_is_given_counts_first(following: Served, engine: FakeEngine, path: str) -> None:
    sampling, _ = asked(following, engine, path, temperature=0.0, top_p=1.0)
    assert settings(sampling)[:2] == (0.0, 1.0)
    assert settings(sampling)[2:] == (20, 0.125, 1.5)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_what_only_vllms_clients_give_counts_first(
    following: Served, engine: FakeEngine, path: str
) -> None:
    given = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "max_tokens": 5}
    sampling, _ = asked(following, engine, path, **given)
    assert settings(sampling) == (0.6, 0.75, 0, 0.0, 1.0)
    assert sampling.max_tokens == 5


def test_what_messages_have_of_their_own_counts_first(
    following: Served, engine: FakeEngine
) -> None:
    sampling, _ = asked(following, engine, "/v1/messages", top_k=5, temperature=0.0)
    assert settings(sampling) == (0.0, 0.75, 5, 0.125, 1.5)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_null_is_as_if_left_out(following: Served, engine: FakeEngine, path: str) -> None:
    sampling, _ = asked(following, engine, path, temperature=None, top_p=None)
    assert settings(sampling) == (0.6, 0.75, 20, 0.125, 1.5)


@pytest.mark.parametrize("path", BODIES)
def test_none_leaves_the_dialects_own(ignoring: Served, engine: FakeEngine, path: str) -> None:
    sampling, _ = asked(ignoring, engine, path)
    assert settings(sampling) == (1.0, 1.0, 0, 0.0, 1.0)
    assert sampling.max_tokens != 77


def test_a_response_says_what_it_was_sampled_with(
    following: Served, ignoring: Served, engine: FakeEngine
) -> None:
    for gateway, expected in ((following, (0.6, 0.75)), (ignoring, (1.0, 1.0))):
        _, answer = asked(gateway, engine, "/v1/responses")
        assert (answer["temperature"], answer["top_p"]) == expected
