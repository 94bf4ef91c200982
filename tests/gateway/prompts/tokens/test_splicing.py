from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.splicing import (
    START,
    ChatHash,
    Place,
    Splice,
    SplicedChat,
    before_control,
    before_last,
    between,
    end_of,
    is_before_control,
)
from gateway.prompts.tokens.tokenizer import TokenIds
from tests.gateway.support.families import FAMILIES

CHAT = Rendered(("a", "<s>", "user", "<e>", "\n", "<s>", "assistant\nhi", "<e>", ""))
BEGIN, END = Place(6, len("assistant\n")), Place(6, len("assistant\nhi"))


def ids(*token_ids: int) -> TokenIds:
    return np.array(token_ids, np.int32)


@pytest.mark.parametrize("name", ["qwen3", "llama3", "mistral", "mistral-legacy"])
def test_a_generated_turn_is_spliced_back_token_by_token(name: str) -> None:
    family = FAMILIES[name]()
    encode = partial(family.ours.encode, add_special_tokens=False)
    question, answer = Message("user", (Text("fox"),)), "The quick brown fox"
    asked = family.template.render([question], add_generation_prompt=True)
    letters = [encode(Rendered((letter,))) for letter in answer]
    generated = np.concatenate(letters)  # one token for each letter, as a model may generate
    turns = [question, Message("assistant", (Text(answer),)), question]
    rendered = family.template.render(turns, add_generation_prompt=True)
    begin = end_of(asked)
    end = Place(begin.piece, begin.chars + len(answer))
    chat = SplicedChat(rendered, (Splice(begin, end, generated),))
    parts = [part if isinstance(part, np.ndarray) else encode(part) for part in chat.parts()]
    found = np.concatenate(parts).tolist()
    first = [*encode(asked).tolist(), *generated.tolist()]
    assert found[: len(first)] == first
    assert encode(rendered).tolist()[: len(first)] != first, "the control: read again"
    assert found[len(first) :] == encode(between(rendered, end, end_of(rendered))).tolist()


def test_parts_are_the_whole_chat() -> None:
    places = [START, Place(0, 1), Place(4, 0), BEGIN, END, end_of(CHAT)]
    for begin in places:
        for end in (place for place in places if place >= begin):
            parts = [between(CHAT, *pair) for pair in ((START, begin), (begin, end))]
            parts.append(between(CHAT, end, end_of(CHAT)))
            assert "".join(part.text for part in parts) == CHAT.text
            assert sum(len(part.pieces) // 2 for part in parts) == 4, "control tokens stay"


def test_a_hash_tells_tokens_from_text_and_splices_from_both() -> None:
    def digest(rendered: Rendered, *splices: Splice) -> bytes:
        return SplicedChat(rendered, splices).digest(end_of(rendered))

    forged = Rendered(("a<s>", "<s>", "user"))
    chats = [
        digest(CHAT),
        digest(forged),
        digest(Rendered(("a", "<s>", "<s>user"))),
        digest(Rendered(("a<s><s>user",))),
        digest(CHAT, Splice(BEGIN, END, ids(7, 8))),
        digest(CHAT, Splice(BEGIN, END, ids(7, 9))),
        digest(CHAT, Splice(BEGIN, END, ids(7))),
    ]
    assert len(set(chats)) == len(chats)


def test_a_hash_is_the_same_in_one_step_and_in_many() -> None:
    whole, steps = ChatHash(CHAT), ChatHash(CHAT)
    for place in (Place(0, 1), Place(2, 2), BEGIN, END):
        steps.read_to(place)
    assert steps.read_to(end_of(CHAT)) == whole.read_to(end_of(CHAT))
    assert not steps.is_before(BEGIN)
    assert not steps.is_before(Place(9, 0))


def test_where_turns_begin_and_end() -> None:
    assert before_control(CHAT, BEGIN, frozenset({"<e>"})) == END
    assert before_control(CHAT, BEGIN, frozenset({"<s>"})) is None
    opened = Rendered(("", "<s>", "assistant\n", "<think>", "\n\n", "</think>", "\n\n"))
    tags = len("<think>\n\n</think>\n\n")
    assert before_last(opened, tags) == Place(2, len("assistant\n"))
    assert before_last(opened, tags + 1) == Place(2, len("assistant"))
    assert before_last(opened, 1) == Place(6, 1)
    for length in (0, tags - 1, len(opened) + 1):
        assert before_last(opened, length) == end_of(opened)


def test_what_follows_a_place() -> None:
    assert is_before_control(CHAT, END)
    assert is_before_control(CHAT, end_of(CHAT))
    assert not is_before_control(CHAT, BEGIN)
