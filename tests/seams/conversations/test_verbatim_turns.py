"""A prompt has earlier answers as the generated tokens, and is answered like the same token ids.

The model is tiny and random, and may write only a few letters. If the text were tokenised again, it
would give other tokens, since the vocabulary has words of these letters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.doubles.engine.tiny_model import RUNNABLE
from tests.gateway.support.families import FAMILIES
from tests.seams.support.server import Server, running_server

FAMILY = FAMILIES["qwen2"]()
QUESTION = "Which animals are there in the sentence that everybody writes to try a font? " * 4
BIASES = {str(FAMILY.id_of(letter)): 100 for letter in "theouwn"}
HOW: dict[str, Any] = {"temperature": 1, "seed": 7, "logit_bias": BIASES, "max_tokens": 48}
MODEL = "qwen2"  # name of the model's directory
Messages = list[dict[str, str]]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a runnable model with the tokenizer and the template of Qwen2."""
    directory = tmp_path_factory.mktemp("models") / MODEL
    directory.mkdir()
    ends = {"eos_token": "<|im_end|>", "eos_token_id": FAMILY.id_of("<|im_end|>")}
    size = -(-FAMILY.inner.get_vocab_size() // 4) * 4
    config = RUNNABLE | {"vocab_size": size, "eos_token_id": ends["eos_token_id"]}
    FAMILY.inner.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_bytes(msgspec.json.encode(config))
    texts = {"eos_token": ends["eos_token"], "chat_template": FAMILY.template.source}
    (directory / "tokenizer_config.json").write_bytes(msgspec.json.encode(texts))
    return directory


@contextmanager
def served(model_dir: Path, data_dir: Path) -> Iterator[Server]:
    model = {"RATOON_MODEL": str(model_dir), "RATOON_LOAD_FORMAT": "dummy"}
    with running_server(data_dir, model) as server:
        yield server


def posted(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = http.post(path, json={"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    reply: dict[str, Any] = answer.json()
    return reply


def chat(http: httpx.Client, messages: Messages) -> dict[str, Any]:
    return posted(http, "/v1/chat/completions", messages=messages, **HOW)


def two_turns(http: httpx.Client) -> tuple[Messages, dict[str, int]]:
    """Return the messages before the second answer, and the usage of the first."""
    messages = [{"role": "user", "content": QUESTION}]
    first = chat(http, messages)
    messages.append(first["choices"][0]["message"])
    return [*messages, {"role": "user", "content": "And?"}], first["usage"]


def test_an_answer_after_splicing_is_that_to_the_same_tokens(
    model_dir: Path, tmp_path: Path
) -> None:
    with served(model_dir, tmp_path / "data") as server:
        with server.client() as http:
            messages, used = two_turns(http)
            tokens = posted(http, "/tokenize", messages=messages)["tokens"]
            second = chat(http, messages)
            usage = second["usage"]
            assert usage["prompt_tokens"] == len(tokens)
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert cached >= 0.9 * (used["prompt_tokens"] + used["completion_tokens"])
        with server.client(server.new_tenant()) as http:  # a tenant without cached blocks
            rendered = posted(http, "/tokenize", messages=messages)["tokens"]
            assert len(rendered) < len(tokens), "the control: read again, it is fewer tokens"
            same = posted(http, "/v1/completions", prompt=tokens, **HOW)
            assert same["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert same["choices"][0]["text"] == second["choices"][0]["message"]["content"]
