"""Required calls, strict tools and schemas, for each family that calls tools, over its own
vocabulary.

A random walk through a request's grammar ends in calls, or in an answer of its schema. The family's
parser reads them, and its template shows them in the next turn. Families with the same tokenizer
share a vocabulary, which has the control tokens of all of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from engine.grammars.vocabulary import read_vocabulary
from gateway.config import Bounds
from gateway.dialects.openai.requests.chat import request_of_chat
from gateway.dialects.openai.requests.schema import ChatRequest
from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.generation_request import ChatPrompt, GenerationRequest
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.tokenizer import Tokenizer
from gateway.turn_formats.pieces import Piece, TextPiece
from gateway.turn_formats.reading import TurnReader
from tests.gateway.turn_formats.turns import calls_of, read
from tests.zoo.families import CALLING_OTHERWISE, FAMILIES, SERVED, TOKENIZERS
from tests.zoo.family import Family
from tests.zoo.grammars.test_held_answers import ASKED, CALLS, OTHERS, SCHEMAS, UNIT
from tests.zoo.grammars.walks import Walker
from tests.zoo.more_families import MORE

_MOST = 4000  # number of tokens of a walk
HERE = ("qwen3", "gemma3")  # families whose vocabularies `make test` tests too
CALLING = [one for one in FAMILIES if one.tools and one in SERVED]
CALLING += [one for one in FAMILIES if one.name in CALLING_OTHERWISE]
# Apriel is left out, since no random walk writes the text that ends its thoughts. xLAM is left out:
# its calls have no control token, but the shared vocabulary has those of other families.
MORE_CALLING = [
    one for one in MORE if one.tools and one.tools != "apriel" and one.name != "vllm-xlam_llama"
]
ASKS = {
    name: {**CALLS, **OTHERS}[name]
    for name in ("required", "named", "strict and required", "strict", "a schema")
}


@dataclass(frozen=True)
class Vocabularies:
    """Vocabularies, each shared by the families with the same tokenizer."""

    tokenizer: Tokenizer
    walker: Walker

    @classmethod
    def of(cls, families: list[Family], directory: Path) -> Vocabularies:
        """Return the vocabulary with the control tokens, end tokens and templates of all the
        families.
        """
        ends = tuple(dict.fromkeys(end for one in families for end in one.ends))
        special = tuple(dict.fromkeys(mark for one in families for mark in one.special))
        plain = tuple(dict.fromkeys(mark for one in families for mark in one.plain))
        union = replace(families[0], ends=ends, special=special, plain=plain)
        union.write(directory, real=True)
        templates = [
            {"name": f"{one} {name}", "template": template}
            for one in families
            for name, template in one.templates().items()
        ]
        config = {"chat_template": templates, "eos_token": ends[0]}
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer = Tokenizer.load(directory)
        ids = {text: token_id for token_id, text in tokenizer.control_ids().items()}
        eos = tuple(ids[end] for end in ends if end in ids)
        vocabulary = read_vocabulary(directory, tokenizer.vocab_size, eos)
        return cls(tokenizer, Walker(vocabulary, [*ids.values()]))


@dataclass(frozen=True)
class Chats:
    """Chats with one family."""

    shared: Vocabularies
    template: ChatTemplate
    forms: AnswerForms

    @classmethod
    def of(cls, family: Family, shared: Vocabularies) -> Chats:
        tokens = {"eos_token": family.ends[0], **({"bos_token": family.bos} if family.bos else {})}
        control = shared.tokenizer.control
        tool_use = family.templates().get("tool_use")
        template = ChatTemplate(family.template(), tokens, tool_use, control)
        forms = AnswerForms.of(template, shared.tokenizer, None)
        assert forms.tools is not None
        assert forms.tools.name == family.tools
        return cls(shared, template.telling(forms.tools), forms)

    def prompt(self, request: GenerationRequest) -> Rendered:
        [chat] = request.prompts
        assert isinstance(chat, ChatPrompt)
        self.template.check(chat.messages, add_generation_prompt=True, tools=chat.tools)
        return self.template.render(
            chat.messages,
            add_generation_prompt=True,
            variables=chat.variables,
            tools=chat.tools,
        )

    def answer(self, asked: Mapping[str, Any]) -> list[Piece]:
        """Return the pieces of an answer that follows the request's grammar."""
        request = _request(ASKED, asked)
        prompt = self.prompt(request).text
        grammar = self.forms.grammar(request.form, prompt)
        assert grammar is not None
        ids = self.shared.walker.walk(grammar, _MOST)
        assert len(ids) < _MOST
        parser = self.forms.parser(request.form, prompt) or TurnReader
        return read(parser(), [self.shared.tokenizer.decode(ids, skip_special_tokens=False)])

    def next_prompt(self, turns: list[dict[str, Any]], asked: Mapping[str, Any]) -> str:
        """Return the prompt after the question, with more turns."""
        shown = self.prompt(_request([*ASKED, *turns], asked)).text
        return shown[shown.rindex(ASKED[-1]["content"]) :]


def _request(messages: list[dict[str, Any]], asked: Mapping[str, Any]) -> GenerationRequest:
    body = {"model": "tiny", "messages": messages, **asked}
    wire = msgspec.json.decode(msgspec.json.encode(body), type=ChatRequest)
    return request_of_chat(wire, "request", Bounds())


def check_calls(chats: Chats, pieces: list[Piece], asked: Mapping[str, Any]) -> None:
    """Check that calls are valid, and that the next prompt shows them and their results."""
    calls = calls_of(pieces)
    for name, arguments in calls:
        jsonschema.validate(arguments, SCHEMAS[name])
    sent = [
        {
            "id": f"call{place:05}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for place, (name, arguments) in enumerate(calls)
    ]
    results = [
        {"role": "tool", "tool_call_id": one["id"], "content": f"result {place}!"}
        for place, one in enumerate(sent)
    ]
    turn = {"role": "assistant", "content": None, "tool_calls": sent}
    shown = chats.next_prompt([turn, *results], asked)
    texts = [name for name, _ in calls] + [str(one["content"]) for one in results]
    texts += [arguments["code"] for name, arguments in calls if name == "get_unit"]
    assert all(text in shown for text in texts), shown


def check_answer(chats: Chats, pieces: list[Piece], asked: Mapping[str, Any]) -> None:
    """Check that the answer's text is valid, and that the next prompt shows it."""
    text = "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))
    jsonschema.validate(json.loads(text), UNIT)
    turns = [{"role": "assistant", "content": text}, {"role": "user", "content": "So?"}]
    assert text.strip() in chats.next_prompt(turns, asked)


def check_family(chats: Chats) -> None:
    for name, asked in ASKS.items():
        pieces = chats.answer(asked)
        called = [one for one, _ in calls_of(pieces)]
        if name == "a schema":
            check_answer(chats, pieces, asked)
            continue
        assert called or name == "strict", (name, pieces)
        assert name != "named" or {*called} == {"get_number"}
        if called:
            check_calls(chats, pieces, asked)


def check_families(families: list[Family], directory: Path) -> None:
    shared = Vocabularies.of(families, directory)
    for family in families:
        try:
            check_family(Chats.of(family, shared))
        except Exception as error:
            error.add_note(f"the family {family}")
            raise


def by_tokenizer(families: list[Family]) -> list[Any]:
    """Return the families grouped by tokenizer, for parametrize."""
    named = {
        name: [one for one in families if one.tokenizer == shipped]
        for name, shipped in TOKENIZERS.items()
    }
    assert sum(map(len, named.values())) == len(families)
    return [
        pytest.param(found, id=name, marks=() if name in HERE else pytest.mark.zoo)
        for name, found in named.items()
        if found
    ]


@pytest.mark.parametrize("families", by_tokenizer(CALLING))
def test_each_family_is_held_over_its_own_tokens(families: list[Family], tmp_path: Path) -> None:
    """Check families of one byte-level and one SentencePiece vocabulary; `test_held_answers` has
    every format.
    """
    check_families(families, tmp_path)


@pytest.mark.zoo
@pytest.mark.parametrize("families", by_tokenizer(MORE_CALLING))
def test_further_templates_are_held_likewise(families: list[Family], tmp_path: Path) -> None:
    check_families(families, tmp_path)


def test_seventeen_families_call() -> None:
    assert len(CALLING) >= 17
