"""Texts that Ratoon tokenises with published tokenizers, compared with the tokenizer library."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest
import tokenizers

from engine.models.token_marks import read_token_marks
from gateway.config import Bounds
from gateway.generation.detokenizer import Detokenizer
from gateway.processes.fair_executor import at_once
from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.long_text import LongTexts
from gateway.prompts.tokens.text_memory import Owner, TextMemory
from gateway.prompts.tokens.tokenizer import Tokenizer
from tests.examples import in_the_zoo
from tests.gateway.support.manual_clock import ManualClock
from tests.zoo.families import TOKENIZERS
from tests.zoo.texts import texts

_OWNER = Owner("ada", b"")
_CUT = {"qwen2.5", "qwen3", "llama3", "mistral-nemo", "gpt-oss"}


@dataclass(frozen=True)
class _Loaded:
    inner: tokenizers.Tokenizer  # the tokenizer that the library makes from the file
    ours: Tokenizer

    def plain(self, text: str) -> list[int]:
        ids: list[int] = self.inner.encode(text, add_special_tokens=False).ids
        return ids

    def ids(self, text: str | Rendered) -> list[int]:
        ids: list[int] = self.ours.encode(text, add_special_tokens=False).tolist()
        return ids


@cache
def _loaded(name: str) -> _Loaded:
    directory = TOKENIZERS[name].directory
    inner = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    return _Loaded(inner, Tokenizer(inner, marks=read_token_marks(directory)))


# tokenizers that behave like those of qwen3, deepseek-v3 and mistral-nemo
ALIKE = ("qwen2.5", "deepseek-v4", "gpt-oss")
every = pytest.mark.parametrize(
    "name", [*(name for name in TOKENIZERS if name not in ALIKE), *in_the_zoo(*ALIKE)]
)


@every
def test_texts_have_the_ids_that_the_library_gives_them(name: str) -> None:
    loaded = _loaded(name)
    for text in texts().values():
        assert loaded.ours.control.pattern.search(text) is None
        assert loaded.ids(text) == loaded.plain(text)


@every
def test_cut_and_remembered_they_have_the_same_ids(name: str) -> None:
    loaded = _loaded(name)
    memory = TextMemory(Bounds(), ManualClock())
    long = LongTexts(loaded.ours, memory, chunk=300)
    assert long.can_cut == (name in _CUT)
    text = "\n".join(texts().values())
    for end in (len(text) // 2, len(text), len(text)):
        ids = at_once(long.encode(text[:end], add_special_tokens=False, most=1 << 30, owner=_OWNER))
        assert ids is not None
        assert ids.tolist() == loaded.plain(text[:end])


@every
def test_a_text_that_looks_like_control_tokens_is_text(name: str) -> None:
    loaded = _loaded(name)
    control = loaded.ours.control_ids()
    forged = "a".join(control.values())
    assert len(set(loaded.plain(forged)) & control.keys()) == len(control) > 0  # positive control
    ids = loaded.ids(forged)
    assert not set(ids) & control.keys()
    assert loaded.ours.decode(ids, skip_special_tokens=True) == forged


@every
def test_in_a_chat_only_the_template_writes_them(name: str) -> None:
    loaded = _loaded(name)
    control = loaded.ours.control_ids()
    marks = sorted(control.values())[:40]
    source = "{% for m in messages %}" + "".join(marks) + "{{ m.content }}{% endfor %}"
    template = ChatTemplate(source, {}, control=loaded.ours.control)
    message = Message("user", (Text("b".join(marks)),))
    ids = loaded.ids(template.render([message], add_generation_prompt=False))
    assert sorted(control[one] for one in ids if one in control) == marks


@every
def test_the_bytes_of_tokens_join_to_the_text_and_so_do_pieces(name: str) -> None:
    loaded = _loaded(name)
    for text in texts().values():
        ids = loaded.ids(text)
        read = loaded.ours.decode(ids, skip_special_tokens=True)
        spelled = [loaded.ours.bytes_of(one, first=not at) for at, one in enumerate(ids)]
        assert b"".join(spelled).decode() == read
        shown = Detokenizer(loaded.ours, skip_special_tokens=True)
        assert "".join([*map(shown.push, ids), shown.flush()]) == read


@every
def test_added_tokens_are_what_the_library_makes_of_them(name: str) -> None:
    loaded = _loaded(name)
    for token_id in loaded.inner.get_added_tokens_decoder():
        text = loaded.inner.decode([token_id], skip_special_tokens=False)
        if "\N{REPLACEMENT CHARACTER}" not in text:
            assert loaded.ours.bytes_of(token_id).decode() == text
