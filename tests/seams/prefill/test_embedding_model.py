"""A published embedding model gives the embeddings of `transformers`, in a whole server.

The official client asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
import safetensors
import torch

from tests.engine.rigs.checkpoints import Checkpoint
from tests.seams.support.server import Server, running_server
from tests.seams.support.small_qwen import MARKS, small_tokenizer, write_small_qwen

TEXTS = ["a", "An Oslo door has the code 1417.", "word " * 60]
MODEL = "model"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_small_qwen(tmp_path_factory.mktemp("embedder") / MODEL, embeds=True)


@pytest.fixture(scope="module")
def embedder(made: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"RATOON_MODEL": str(made.model_dir)}
    with running_server(tmp_path_factory.mktemp("ratoon") / "data", settings) as running:
        yield running


def names_in(model_dir: Path) -> set[str]:
    names = set()
    for path in model_dir.glob("*.safetensors"):
        with safetensors.safe_open(str(path), framework="pt") as file:
            names.update(file.keys())
    return names


@torch.inference_mode()
def true_embedding(made: Checkpoint, text: str, dimensions: int | None = None) -> torch.Tensor:
    ids = small_tokenizer(appends=True).encode(text).ids
    assert ids[-1] == small_tokenizer(appends=True).token_to_id(MARKS[0])
    states = made.truth.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1]
    return torch.nn.functional.normalize(states[:dimensions].float(), dim=0)


def test_the_files_have_no_head_and_flat_names(made: Checkpoint) -> None:
    names = names_in(made.model_dir)
    assert {"embed_tokens.weight", "norm.weight"} <= names
    assert not any(name.startswith(("model.", "lm_head")) for name in names)


@pytest.mark.parametrize("dimensions", [None, 16])
def test_embeddings_are_those_of_transformers(
    embedder: Server, made: Checkpoint, dimensions: int | None
) -> None:
    client = embedder.openai()
    more = {} if dimensions is None else {"dimensions": dimensions}
    for _ in ("cold", "cached"):
        answer = client.embeddings.create(model=MODEL, input=TEXTS, **more)  # type: ignore[arg-type]
        for text, one in zip(TEXTS, answer.data, strict=True):
            wanted = true_embedding(made, text, dimensions)
            assert np.abs(np.array(one.embedding) - wanted.numpy()).max() < 1e-4
    usage = answer.usage.model_dump()
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 288


def test_it_generates_nothing(embedder: Server) -> None:
    """An embedding model's files have no head for logits."""
    client = embedder.openai()
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="a", max_tokens=1)
    assert refused.value.code == "model_only_embeds"
