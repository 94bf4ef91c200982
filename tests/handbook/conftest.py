from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from tests.doubles.engine.shapes import EMBEDDED


@pytest.fixture(scope="package")
def shipped_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
