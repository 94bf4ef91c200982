"""A long text that is tokenised in chunks has the same ids as the undivided text, for all kinds of
text.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from gateway.errors import BadRequest
from gateway.processes.fair_executor import at_once
from gateway.prompts.tokens import long_text
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.long_text import LongTexts, chunks, chunks_of
from gateway.prompts.tokens.tokenizer import Tokenizer
from tests.doubles.engine.tiny_model import byte_tokenizer

HANDBOOK = Path(__file__).parents[4] / "handbook" / "model"
EXPRESSIONS = sorted(long_text._KNOWN)
SPECIAL = "<|im_end|>"
PIECES = [
    "the support code", " Berlin", " is 4821.", "\n\n", "  ", "\t", "don't", "I'LL",
    "x=1;", "été", " naïve", "日本語", "。", "한국어", "\u0435\u0301", "नमस्ते", "٣٤", "½",
    "👍🏽", "a\u0338", "=====", "1,234.5", "_id_", "CamelCase", SPECIAL, "<|im_",
    "\r\n", "e\u0301", "/", "A", "9", " ", "e", "\u0301",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"]), max_size=60)


def trained(expression: str | None, *, normalized: bool) -> tokenizers.Tokenizer:
    """Train a byte-level tokenizer that merges everything in PIECES."""
    inner = tokenizers.Tokenizer(models.BPE())
    if expression is None:
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    else:
        inner.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(expression), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    if normalized:
        inner.normalizer = normalizers.NFC()
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    some = random.Random(7)
    inner.train_from_iterator(["".join(some.choices(PIECES, k=40)) for _ in range(200)], trainer)
    inner.add_special_tokens([SPECIAL])
    return inner


def in_chunks(
    tokenizer: Tokenizer, text: str | Rendered, *, special: bool = False, size: int | None = None
) -> Any:
    texts = LongTexts(tokenizer, chunk=size)
    return at_once(texts.encode(text, add_special_tokens=special, most=1 << 30))


TOKENIZERS = {
    "handbook": Tokenizer.load(HANDBOOK),
    "gpt-2": Tokenizer(trained(None, normalized=False)),
    **{
        f"{number}{'-nfc' * normalized}": Tokenizer(trained(expression, normalized=normalized))
        for number, expression in enumerate(EXPRESSIONS)
        for normalized in (False, True)
    },
}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(parts=texts, size=st.integers(1, 12))
def test_the_ids_are_those_of_the_whole_text(name: str, parts: list[str], size: int) -> None:
    tokenizer, text = TOKENIZERS[name], "".join(parts)
    assert LongTexts(tokenizer).can_cut
    found = in_chunks(tokenizer, text, size=size)
    assert found.tolist() == tokenizer.encode(text, add_special_tokens=False).tolist()


@pytest.mark.parametrize("name", TOKENIZERS)
@given(parts=texts, size=st.integers(1, 12))
def test_the_ids_of_a_chat_are_those_of_the_whole_chat(
    name: str, parts: list[str], size: int
) -> None:
    tokenizer = TOKENIZERS[name]
    chat = tokenizer.control.split("".join(parts))
    found = in_chunks(tokenizer, chat, size=size)
    assert found.tolist() == tokenizer.encode(chat, add_special_tokens=False).tolist()


def test_a_long_chat_is_cut_within_its_texts_and_between() -> None:
    control = TOKENIZERS["gpt-2"].control
    chat = control.split(f"{SPECIAL}one word more {SPECIAL}" * 3000 + "a long text " * 3000)
    pieces = list(chunks_of(chat, []))
    assert all(isinstance(piece, Rendered) for piece in pieces)
    assert "".join(piece.text for piece in pieces if isinstance(piece, Rendered)) == chat.text
    assert max(map(len, pieces)) < 2 * long_text.CHUNK
    assert len(pieces) >= len(chat) // (2 * long_text.CHUNK)


def test_control_a_cut_elsewhere_gives_other_ids() -> None:
    tokenizer = TOKENIZERS["handbook"]
    text = "the support code for Berlin"
    whole = tokenizer.encode(text, add_special_tokens=False).tolist()
    halves = [tokenizer.encode(half, add_special_tokens=False) for half in (text[:6], text[6:])]
    assert [*halves[0], *halves[1]] != whole


def test_a_long_text_is_cut_into_many_chunks_at_words() -> None:
    text = "the support code for Berlin is 4821. " * 3000
    pieces = list(chunks(text))
    assert "".join(pieces) == text
    assert len(pieces) >= len(text) // (2 * long_text.CHUNK)
    assert max(map(len, pieces)) < 2 * long_text.CHUNK


def test_it_stops_as_soon_as_there_are_too_many() -> None:
    tokenizer = TOKENIZERS["handbook"]
    steps = LongTexts(tokenizer).encode("word " * 200_000, add_special_tokens=False, most=10_000)
    assert sum(1 for _ in steps) < 5
    assert (
        at_once(
            LongTexts(tokenizer).encode("word " * 200_000, add_special_tokens=False, most=10_000)
        )
        is None
    )


def test_a_long_run_without_a_place_to_cut_is_refused() -> None:
    tokenizer = TOKENIZERS["handbook"]
    with pytest.raises(BadRequest, match="without a space"):
        in_chunks(tokenizer, "a" * (long_text.LONGEST_RUN + 1))
    assert len(in_chunks(tokenizer, "a" * 50_000)) > 1000  # positive control


def test_what_the_model_puts_in_front_of_a_text_comes_once() -> None:
    inner = trained(None, normalized=False)
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{SPECIAL} $A", special_tokens=[(SPECIAL, inner.token_to_id(SPECIAL))]
    )
    tokenizer, text = Tokenizer(inner), "one word more " * 4000
    assert LongTexts(tokenizer).can_cut
    whole = tokenizer.encode(text, add_special_tokens=True)
    assert in_chunks(tokenizer, text, special=True).tolist() == whole.tolist()


def changed(**fields: Any) -> Tokenizer:
    """Return the handbook's tokenizer with changed fields of its JSON file."""
    spelled = json.loads((HANDBOOK / "tokenizer.json").read_text())
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(spelled | fields)))


@pytest.mark.parametrize(
    "fields",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                           "use_regex": True}},
        {"post_processor": {"type": "TemplateProcessing",
                            "single": [{"Sequence": {"id": "A", "type_id": 0}},
                                       {"SpecialToken": {"id": "<|end|>", "type_id": 0}}],
                            "pair": [], "special_tokens": {
                                "<|end|>": {"id": "<|end|>", "ids": [1], "tokens": ["<|end|>"]}}}},
    ],
)  # fmt: skip
def test_texts_of_other_tokenizers_are_not_cut(fields: dict[str, Any]) -> None:
    assert not LongTexts(changed(**fields)).can_cut
    assert LongTexts(changed()).can_cut


def test_a_tokenizer_that_is_not_known_takes_a_text_whole() -> None:
    tokenizer = Tokenizer(byte_tokenizer())
    assert not LongTexts(tokenizer).can_cut
    assert len(in_chunks(tokenizer, "a b" * 20_000)) == 60_000
