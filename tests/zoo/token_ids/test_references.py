"""Texts get the same ids as in transformers, and as in llama.cpp's tests."""

from __future__ import annotations

import pytest
import transformers

from gateway.prompts.tokens.tokenizer import Tokenizer
from tests.zoo.families import TOKENIZERS
from tests.zoo.here import here
from tests.zoo.sources import LLAMA_CPP
from tests.zoo.texts import texts

pytestmark = pytest.mark.zoo


@pytest.mark.parametrize("name", TOKENIZERS)
def test_texts_have_the_ids_of_transformers(name: str) -> None:
    directory = TOKENIZERS[name].directory
    ours = Tokenizer.load(directory)
    if name == "mistral-7b":  # for this file, LlamaTokenizer makes another tokenizer
        file = str(directory / "tokenizer.json")
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=file)
    else:
        theirs = transformers.AutoTokenizer.from_pretrained(directory)
    for text in texts().values():
        ids = ours.encode(text, add_special_tokens=False).tolist()
        assert ids == theirs.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("name", "file"),
    [("llama3", "llama-bpe"), ("qwen2.5", "qwen2"), ("qwen3", "qwen2"), ("gemma3", "gemma-4")],
)
def test_texts_have_the_ids_of_llama_cpp_s_tests(name: str, file: str) -> None:
    directory = here(LLAMA_CPP) / "vendor" / "llama.cpp" / "models"
    given = (directory / f"ggml-vocab-{file}.gguf.inp").read_text(encoding="utf-8")
    expected = (directory / f"ggml-vocab-{file}.gguf.out").read_text().splitlines()
    ours = Tokenizer.load(TOKENIZERS[name].directory)
    said = given.split("\n__ggml_vocab_test__\n")
    assert len(said) > 40
    for text, ids in zip(said, expected, strict=False):
        assert ours.encode(text, add_special_tokens=False).tolist() == [*map(int, ids.split())]
