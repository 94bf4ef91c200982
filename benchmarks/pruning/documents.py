"""Documents and questions about them as token ids, for the embedded model and for ChatML.

Knows: chats' control tokens, and where in a document an answer is. Does not know: models or KV.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer

from handbook.training.facts import UNKNOWN
from handbook.training.text import make_handbook, make_questions
from handbook.training.tokenizer import ASSISTANT, BEGIN, END, SYSTEM, USER

Text = Literal["handbook", "needles"]

TOKENS_PER_FACT = 20
TENTHS = 10
MOST = 20  # questions drawn about a handbook; some have no answer in it
_LICENSE = Path(__file__).parents[2] / "LICENSE"  # a text that people wrote
_CITIES = (
    "Berlin",
    "Oslo",
    "Rome",
    "Madrid",
    "Vienna",
    "Prague",
    "Dublin",
    "Athens",
    "Paris",
    "Lima",
)
_KINDS = (
    "door",
    "support",
    "alarm",
    "gate",
    "locker",
    "garage",
    "vault",
    "server",
    "van",
    "parking",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as the document's continuation up to its answer, and the right answer."""

    question: list[int]
    answer: list[int]
    depth: int  # tenth of the document that has the answer, from 0


@dataclass(frozen=True, slots=True)
class Document:
    """A system message as token ids, and questions about it."""

    head: list[int]
    body: list[int]
    tail: list[int]
    repeat: list[int]  # what asks for the body again
    asked: list[Asked]

    @property
    def prefix(self) -> list[int]:
        """The tokens that all questions follow."""
        return self.head + self.body + self.tail

    def truncated(self, fewer: int) -> list[int]:
        """Return the prefix with only the last 1 / `fewer` of the body's tokens."""
        return self.head + self.body[-(len(self.body) // fewer) :] + self.tail


class Chat:
    """A chat format: the embedded model's, or else ChatML."""

    def __init__(self, tokenizer: Tokenizer, *, embedded: bool) -> None:
        self.embedded = embedded
        self._tokenizer = tokenizer
        opener = "<|im_start|>{}\n"
        self._user = USER if embedded else opener.format("user")
        self._assistant = ASSISTANT if embedded else opener.format("assistant")
        self.system = self.ids(BEGIN + SYSTEM if embedded else opener.format("system"))
        self.end = self.ids(END if embedded else "<|im_end|>\n")

    def ids(self, text: str) -> list[int]:
        """Return a text's token ids, control tokens among them."""
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return found

    def question(self, text: str) -> list[int]:
        """Return a user's turn and the beginning of the answer to it."""
        return [*self.ids(self._user + text), *self.end, *self.ids(self._assistant)]

    def asked(self, question: str, answer: str, body: str, *, said: str = "") -> Asked:
        """Ask for an answer in `body`; ChatML's models, which talk, have `said` what leads to it.

        Only the embedded model has to end where the answer ends.
        """
        depth = max(body.find(answer), 0) * TENTHS // len(body)
        if self.embedded:
            return Asked(self.question(question), self.ids(answer) + self.end, depth)
        lead = self.ids(said)
        return Asked(
            self.question(question) + lead, self.ids(f" {answer}" if said else answer), depth
        )


def make_document(chat: Chat, text: Text, number: int, tokens: int, questions: int) -> Document:
    """Write document `number` of a kind, of about `tokens` tokens."""
    write = _handbook if text == "handbook" else _needles
    body, asked = write(chat, number, tokens)
    repeat = chat.question("Repeat the previous text exactly.")
    return Document(chat.system, chat.ids(body), chat.end, repeat, asked[:questions])


def _handbook(chat: Chat, number: int, tokens: int) -> tuple[str, list[Asked]]:
    handbook = make_handbook(number, max(1, tokens // TOKENS_PER_FACT))
    asked = make_questions(handbook, number, MOST)
    stated = [one for one in asked if one.answer != UNKNOWN]
    return handbook.text, [chat.asked(one.text, one.answer, handbook.text) for one in stated]


def _needles(chat: Chat, number: int, tokens: int) -> tuple[str, list[Asked]]:
    """Spread ten codes over a part of the licence."""
    chance = random.Random(number)
    words = _LICENSE.read_text().split()
    words = words[chance.randrange(len(words) // 3) :][: tokens * 2 // 3]
    sentences = " ".join(words).split(". ")
    names = zip(
        chance.sample(_KINDS, len(_KINDS)), chance.sample(_CITIES, len(_KINDS)), strict=True
    )
    facts = [
        (f"{kind} code for {city}", str(chance.randrange(1000, 10_000))) for kind, city in names
    ]
    for place in reversed(range(len(facts))):
        at = (2 * place + 1) * len(sentences) // (2 * len(facts))
        sentences.insert(at, "The {} is {}".format(*facts[place]))
    body = ". ".join(sentences)
    return body, [
        chat.asked(f"What is the {name}?", code, body, said=f"The {name} is")
        for name, code in facts
    ]
