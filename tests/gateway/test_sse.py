"""A frame that is cut and put together again is the very frame that would have been encoded."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import SamplingParams
from gateway.admission import Ask, TextRules
from gateway.choice import Delta, Ended, Event
from gateway.openai.chat import ChatReply
from gateway.openai.completions import CompletionReply
from gateway.openai.rendering import Reply
from gateway.openai.sse import SseFrame, sse
from gateway.tokenizer import Tokenizer
from tests.doubles.tiny_model import byte_tokenizer

BYTES = Tokenizer(byte_tokenizer())
NAME = 'a "model" with :"" in its name'
ASK = Ask("r", ("x",), 2, SamplingParams(max_tokens=9), False, TextRules())


class Note(msgspec.Struct):
    name: str
    text: str


def chat(include_usage: bool = False) -> Reply:
    return ChatReply(
        id="chatcmpl-1", created=7, model=NAME, include_usage=include_usage, tokenizer=BYTES
    )


def completion(include_usage: bool = False) -> Reply:
    return CompletionReply(
        id="cmpl-1",
        created=7,
        model=NAME,
        include_usage=include_usage,
        tokenizer=BYTES,
        ask=ASK,
        echo=False,
    )


def delta(index: int, text: str) -> Delta:
    return Delta(index, text, (1,), None, None)


@pytest.mark.parametrize("reply_of", [chat, completion])
@pytest.mark.parametrize("include_usage", [False, True])
@given(texts=st.lists(st.tuples(st.integers(0, 1), st.text(max_size=8)), max_size=12))
def test_frames_are_the_chunks_encoded(
    reply_of: Callable[[bool], Reply], include_usage: bool, texts: list[tuple[int, str]]
) -> None:
    quick, plain = reply_of(include_usage), reply_of(include_usage)
    deltas = [delta(index, text) for index, text in texts]
    events: list[Event] = [*deltas, Ended(1, "stop", 0, 3)]
    for event in events:
        chunk = plain.chunk(event)
        assert quick.frame(event) == (None if chunk is None else sse(chunk))


def test_a_frame_is_cut_at_its_empty_text() -> None:
    frame = SseFrame.around(Note('"":""', ""))
    assert frame.with_text('é"\n') == sse(Note('"":""', 'é"\n'))


@pytest.mark.parametrize("note", [Note("a", "b"), Note("", "")])
def test_a_frame_with_no_or_two_empty_texts_cannot_be_cut(note: Note) -> None:
    with pytest.raises(ValueError, match="not exactly one"):
        SseFrame.around(note)
