"""Texts have the ids that transformers gives them, with tokenizers as models ship them."""

from __future__ import annotations

import pytest
import transformers

from gateway.prompts.tokenizer import Tokenizer
from tests.zoo.families import TOKENIZERS
from tests.zoo.texts import texts

pytestmark = pytest.mark.zoo


@pytest.mark.parametrize("name", TOKENIZERS)
def test_texts_have_the_ids_of_transformers(name: str) -> None:
    directory = TOKENIZERS[name].directory
    ours = Tokenizer.load(directory)
    if name == "llama2":  # its class makes another tokenizer than the file that it is given
        file = str(directory / "tokenizer.json")
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=file)
    else:
        theirs = transformers.AutoTokenizer.from_pretrained(directory)
    for text in texts().values():
        ids = ours.encode(text, add_special_tokens=False).tolist()
        assert ids == theirs.encode(text, add_special_tokens=False)
