from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from handbook.training.checkpoint import SHIPPED
from handbook.training.tokenizer import load_tokenizer


@pytest.fixture(scope="package")
def shipped_tokenizer() -> Tokenizer:
    return load_tokenizer(SHIPPED)
