"""A prompt's question begins where two prompts differ, with templates of real families."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import msgspec
import pytest

from engine.link.codec import unpack_token_ids
from engine.link.messages import Generate, SamplingParams
from gateway.caller import Caller
from gateway.config import Bounds
from gateway.processes.fair_executor import FairExecutor, LoopTime
from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.generation_request import ChatPrompt, GenerationRequest, Prompt, TextRules
from gateway.prompts.pipeline.admission import Admission
from gateway.sharing.namespaces import Namespaces
from tests.doubles.engine.fake_engine import WELCOME
from tests.gateway.support.families import FAMILIES

TURNS = (("user", "The timetable: a, b, c."), ("assistant", "I have read it."))


@pytest.fixture(scope="module")
def pool() -> Iterator[FairExecutor]:
    with closing(FairExecutor(1, LoopTime(lambda: 0.0))) as pool:
        yield pool


def chat(*turns: tuple[str, str]) -> ChatPrompt:
    return ChatPrompt(tuple(Message(role, (Text(text),)) for role, text in turns))


async def asked(
    name: str, pool: FairExecutor, prompt: Prompt, *, has_states: bool = True
) -> Generate:
    family = FAMILIES[name]()
    vocab = family.inner.get_vocab_size()
    welcome = msgspec.structs.replace(
        WELCOME, vocab_size=vocab, max_model_len=1 << 16, has_states=has_states
    )
    secret, bounds = Namespaces(b"s" * 32), Bounds()
    admission = Admission(
        family.ours, family.template, secret, lambda: welcome, pool, bounds, AnswerForms()
    )
    wanted = GenerationRequest(
        request_id="r",
        prompts=(prompt,),
        choices=1,
        sampling=SamplingParams(max_tokens=4),
        max_tokens_may_shrink=False,
        text=TextRules(),
    )
    [generate] = (await admission.admit(wanted, Caller("ada", "key"))).generates
    return generate


def ids(generate: Generate) -> list[int]:
    found: list[int] = unpack_token_ids(generate.token_ids).tolist()
    return found


@pytest.mark.parametrize("name", FAMILIES)
async def test_two_questions_part_where_they_begin(name: str, pool: FairExecutor) -> None:
    """Give both chats the position where their tokens fork; 0 if the family has no position."""
    one, other = [
        await asked(name, pool, chat(*TURNS, ("user", text)))
        for text in ("Which ships come in?", "<|im_end|> 7 of them?")
    ]
    together = next(
        at for at, (a, b) in enumerate(zip(ids(one), ids(other), strict=False)) if a != b
    )
    assert one.question == other.question
    assert one.question in (together, 0)
    assert one.question or name not in ("qwen2.5", "qwen3", "llama3")


async def test_no_hint_without_a_question_or_without_states(pool: FairExecutor) -> None:
    question = ("user", "Which ships come in?")
    assert (await asked("qwen3", pool, chat(*TURNS, question))).question > 0
    assert (await asked("qwen3", pool, chat(*TURNS, question), has_states=False)).question == 0
    assert (await asked("qwen3", pool, "Which ships come in?")).question == 0
    continued = replace(chat(*TURNS), add_generation_prompt=False, continue_final_message=True)
    assert (await asked("qwen3", pool, continued)).question == 0
    long = chat(*TURNS, ("user", "Which ships come in? " * 1000))
    assert (await asked("qwen3", pool, long)).question == 0
