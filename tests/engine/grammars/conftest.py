"""Fixtures: grammars over the tiny model's byte tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.grammars.compiler import GrammarCompiler
from engine.grammars.grammars import Grammars
from engine.grammars.vocabulary import Vocabulary, read_vocabulary
from tests.doubles.engine.tiny_model import EOS, write_tiny_model

VOCAB_SIZE = 300  # the model has more logits than its tokenizer has tokens


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return read_vocabulary(write_tiny_model(tmp_path_factory.mktemp("tiny")), VOCAB_SIZE, (EOS,))


@pytest.fixture
def grammars(vocabulary: Vocabulary) -> Iterator[Grammars]:
    made = Grammars(GrammarCompiler(vocabulary))
    yield made
    made.close()


@pytest.fixture(scope="session")
def empty_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("empty")
