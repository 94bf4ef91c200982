"""Documents for Qwen3-Reranker are tokenised as its model page says, with Qwen3's own tokenizer."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import transformers
from msgspec import structs

from tests.doubles.engine.fake_engine import WELCOME, FakeEngine, candidates_of, prompt_of
from tests.doubles.gateway.served import MODEL, config_of, serving
from tests.zoo.families import TOKENIZERS, family
from tests.zoo.models import write_runnable

pytestmark = pytest.mark.zoo

# The prefix from the model's page.
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
PAIR = "<Instruct>: {}\n<Query>: {}\n<Document>: {}"
TASK = "Given a web search query, retrieve relevant passages that answer the query"
QUERY = "What is the capital of China?"
DOCUMENTS = ["The capital of China is Beijing.", "  Gravity attracts two bodies.\n", "数学"]


def test_the_prompt_is_the_published_one(tmp_path: Path) -> None:
    write_runnable(family("qwen3"), tmp_path / "model", real=True)
    theirs = transformers.AutoTokenizer.from_pretrained(TOKENIZERS["qwen3"].directory)
    engine = FakeEngine(structs.replace(WELCOME, vocab_size=200_000))
    with serving(config_of(tmp_path / "model", tmp_path / "data"), engine) as served:
        answer = httpx.post(
            f"{served.url}/v1/rerank",
            json={"model": MODEL, "query": QUERY, "documents": DOCUMENTS},
            headers={"authorization": f"Bearer {served.key}"},
        )
        answer.raise_for_status()
    encode = theirs.encode
    wanted = [
        encode(PREFIX, add_special_tokens=False)
        + encode(PAIR.format(TASK, QUERY, document), add_special_tokens=False)
        + encode(SUFFIX, add_special_tokens=False)
        for document in DOCUMENTS
    ]
    assert sorted(map(prompt_of, engine.requests)) == sorted(wanted)
    words = [theirs.convert_tokens_to_ids(word) for word in ("yes", "no")]
    assert all(candidates_of(one) == words for one in engine.requests)
