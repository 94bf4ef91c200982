"""Cache marks of admitted requests have the right positions in prompts, with real templates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from engine.link.codec import unpack_token_ids
from engine.link.messages import SamplingParams
from gateway.caller import Caller
from gateway.config import Bounds
from gateway.processes.fair_executor import FairExecutor, LoopTime
from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.generation_request import CacheMark, ChatPrompt, GenerationRequest, TextRules
from gateway.prompts.pipeline.admission import Admission
from gateway.sharing.namespaces import Namespaces
from tests.doubles.engine.fake_engine import WELCOME
from tests.gateway.support.families import FAMILIES

ADA = Caller("ada", "key")
SMOOTHED = msgspec.structs.replace(ADA, canonical_prompts=True)
HEADER = "x-anthropic-billing-header: cch=eb6c6;\n"
RULES = "You answer questions about the harbour, and you never guess."
WITH_SYSTEM = [name for name in FAMILIES if not name.startswith("mistral")]


@pytest.fixture(scope="module")
def pool() -> Iterator[FairExecutor]:
    with closing(FairExecutor(1, LoopTime(lambda: 0.0))) as pool:
        yield pool


def said(role: str, text: str) -> Message:
    return Message(role, (Text(text),))


def chat(*messages: Message, keys: tuple[str, ...] = ()) -> ChatPrompt:
    """Make a chat. If `keys` are given, it has a tool, whose function has these keys in this
    order.
    """
    clock: dict[str, Any] = {"name": "clock", "description": "tells it", "parameters": {}}
    tool = {"type": "function", "function": {key: clock[key] for key in keys}}
    return ChatPrompt(messages, tools=[tool] if keys else None)


async def marked(
    name: str, pool: FairExecutor, whole: ChatPrompt, covered: ChatPrompt, who: Caller = ADA
) -> str:
    """Return the prompt text of `whole` up to a mark after the messages of `covered`."""
    family = FAMILIES[name]()
    welcome = msgspec.structs.replace(WELCOME, vocab_size=family.inner.get_vocab_size())
    secret, bounds = Namespaces(b"s" * 32), Bounds()
    admission = Admission(
        family.ours, family.template, secret, lambda: welcome, pool, bounds, AnswerForms()
    )
    wanted = GenerationRequest(
        request_id="r",
        prompts=(whole,),
        choices=1,
        sampling=SamplingParams(max_tokens=4),
        max_tokens_may_shrink=False,
        text=TextRules(),
        marks=(CacheMark(300.0, covered),),
    )
    [asked] = (await admission.admit(wanted, who)).generates
    [mark] = asked.marks
    return str(family.inner.decode(unpack_token_ids(asked.token_ids)[: mark.num_tokens].tolist()))


@pytest.mark.parametrize("name", WITH_SYSTEM)
async def test_behind_the_system_s_text(name: str, pool: FairExecutor) -> None:
    system, question = said("system", RULES), said("user", "Which ships come in?")
    found = await marked(name, pool, chat(system, question), chat(system))
    assert RULES in found
    assert "Which" not in found


@pytest.mark.parametrize("name", FAMILIES)
async def test_behind_a_part_of_a_turn(name: str, pool: FairExecutor) -> None:
    turns = said("user", "Hello."), said("assistant", "Hello, you.")
    whole = chat(*turns, said("user", "The timetable.\nWhich ships come in?"))
    found = await marked(name, pool, whole, chat(*turns, said("user", "The timetable.")))
    assert "timetable" in found
    assert "Which" not in found


@pytest.mark.parametrize("who", [ADA, SMOOTHED])
async def test_a_mark_after_the_system_has_no_environment_that_comes_later(
    pool: FairExecutor, who: Caller
) -> None:
    system = said("system", f"{RULES}\n<env>\nToday: Saturday\n</env>\nBe brief.")
    whole = chat(system, said("user", "Which ships come in?"), keys=("name", "description"))
    found = await marked("qwen3", pool, whole, replace(whole, messages=(system,)), who)
    assert "Be brief." in found
    assert "clock" in found
    assert ("Saturday" in found) == (who is ADA), "the control"


@pytest.mark.parametrize("who", [ADA, SMOOTHED])
async def test_what_is_smoothed_in_the_prompt_is_smoothed_in_the_mark(
    pool: FairExecutor, who: Caller
) -> None:
    keys = ("parameters", "description", "name")
    system, question = said("system", HEADER + RULES), said("user", "Which ships come in?")
    whole = chat(system, question, keys=keys)
    found = await marked("qwen3", pool, whole, replace(whole, messages=(system,)), who)
    assert RULES in found
    assert "clock" in found
    assert ("cch" in found) == (who is ADA), "the control"
