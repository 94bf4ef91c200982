"""The chats of admitted requests are compared to find why a prompt missed, with real templates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from engine.link.messages import SamplingParams
from gateway.caller import Caller
from gateway.config import Bounds
from gateway.diagnosis.cache_miss import CacheMiss, cache_miss
from gateway.diagnosis.comparison import Explain
from gateway.diagnosis.parts import PromptPart
from gateway.diagnosis.seen import SeenPrompts
from gateway.processes.fair_executor import FairExecutor, LoopTime
from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.generation_request import ChatPrompt, GenerationRequest, TextRules
from gateway.prompts.pipeline.admission import Admission
from gateway.sharing.namespaces import Namespaces
from tests.doubles.engine.fake_engine import WELCOME
from tests.gateway.support.families import FAMILIES
from tests.gateway.support.manual_clock import ManualClock

ADA = Caller("ada", "key")
RULES = "You answer questions about the harbour, and you never guess. " * 3
TALK = ("Which ships come in today?", "The Anna and the Bertha come in.", "And tomorrow?")
WITH_SYSTEM = [name for name in FAMILIES if not name.startswith("mistral")]


def tool(name: str, description: str = "tells it") -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"zone": {"type": "string"}}}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


CLOCK, ALARM = tool("clock"), tool("alarm")


def chat(system: str, talk: tuple[str, ...] = TALK, tools: Any = None) -> ChatPrompt:
    roles = ("user", "assistant", "user")
    said = [Message(role, (Text(text),)) for role, text in zip(roles, talk, strict=True)]
    return ChatPrompt((Message("system", (Text(system),)), *said), tools=tools)


def parts_of(prompt: ChatPrompt) -> Iterator[PromptPart]:
    for place, one in enumerate(prompt.tools or ()):
        yield PromptPart(f"tools[{place}]", "tools", one["function"]["name"])
    for place, message in enumerate(prompt.messages):
        kind = "system" if message.role == "system" else "messages"
        [part] = message.parts
        assert isinstance(part, Text)
        yield PromptPart(f"messages[{place}]", kind, part.text)  # type: ignore[arg-type]


def wanted(prompt: ChatPrompt, request_id: str) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        prompts=(prompt,),
        choices=1,
        sampling=SamplingParams(max_tokens=4),
        max_tokens_may_shrink=False,
        text=TextRules(),
        explain=Explain("first", tuple(parts_of(prompt))),
    )


@pytest.fixture(scope="module")
def pool() -> Iterator[FairExecutor]:
    with closing(FairExecutor(1, LoopTime(lambda: 0.0))) as pool:
        yield pool


def admission_of(name: str, pool: FairExecutor) -> Admission:
    family = FAMILIES[name]()
    size = family.inner.get_vocab_size()
    welcome = msgspec.structs.replace(WELCOME, vocab_size=size)
    return Admission(
        family.ours,
        family.template,
        Namespaces(b"s" * 32),
        lambda: welcome,
        pool,
        Bounds(),
        AnswerForms(),
        seen=SeenPrompts(Bounds(), ManualClock()),
    )


async def miss_of(admission: Admission, before: ChatPrompt, after: ChatPrompt) -> CacheMiss:
    """Return the reason why `after` missed, if the cache had its whole common prefix with
    `before`.
    """
    admission.computed(await admission.admit(wanted(before, "first"), ADA))
    compared = (await admission.admit(wanted(after, "second"), ADA)).comparison
    assert compared is not None
    return cache_miss(compared, compared.common, None)


@pytest.mark.parametrize("name", WITH_SYSTEM)
async def test_a_date_in_the_system_text(name: str, pool: FairExecutor) -> None:
    before, after = (chat(f"It is 2026-11-2{day}. {RULES}") for day in (2, 3))
    miss = await miss_of(admission_of(name, pool), before, after)
    assert miss.reason == "system_changed"
    assert (miss.part, miss.change) == ("messages[0]", "date")


@pytest.mark.parametrize("name", FAMILIES)
async def test_an_earlier_message(name: str, pool: FairExecutor) -> None:
    """Name a changed earlier message.

    The chat for Mistral has no system message, since its template has none.
    """
    edited = (TALK[0], "Only the Anna comes in, and she is late.", TALK[2])
    before, after = (chat(RULES, talk) for talk in ((*TALK[:2], TALK[2] * 9), edited))
    if name not in WITH_SYSTEM:
        before, after = (replace(one, messages=one.messages[1:]) for one in (before, after))
    miss = await miss_of(admission_of(name, pool), before, after)
    part = f"messages[{len(after.messages) - 2}]"
    assert (miss.reason, miss.part, miss.change) == ("messages_changed", part, "text")


@pytest.mark.parametrize(
    ("tools", "part", "change"),
    [
        ([ALARM, CLOCK], "tools[0]", "reordered"),
        ([CLOCK, tool("alarm", "rings at nine")], "tools[1]", "text"),
        ([CLOCK], "tools", "removed"),
    ],
)
async def test_tools(tools: list[Any], part: str, change: str, pool: FairExecutor) -> None:
    before, after = chat(RULES, tools=[CLOCK, ALARM]), chat(RULES, tools=tools)
    miss = await miss_of(admission_of("qwen3", pool), before, after)
    assert (miss.reason, miss.change) == ("tools_changed", change)
    assert miss.part is not None
    assert miss.part.startswith(part)


async def test_a_prompt_that_was_not_computed_is_not_remembered(pool: FairExecutor) -> None:
    admission = admission_of("qwen2", pool)
    await admission.admit(wanted(chat(RULES), "first"), ADA)
    compared = (await admission.admit(wanted(chat(RULES), "second"), ADA)).comparison
    assert compared is not None
    assert cache_miss(compared, 0, None).reason == "previous_not_found"


async def test_canonical_prompts_are_those_that_are_counted(pool: FairExecutor) -> None:
    admission = admission_of("qwen2", pool)
    caller = msgspec.structs.replace(ADA, canonical_prompts=True)
    header = "x-anthropic-billing-header: cch=eb6c6;\n"
    plain, headed = chat(RULES, tools=[CLOCK]), chat(header + RULES, tools=[CLOCK])
    lengths = {
        (await admission.admit(wanted(prompt, "r"), who)).prompt_tokens
        for prompt, who in ((plain, ADA), (headed, caller))
    }
    [length] = lengths

    def counted(token_ids: Any) -> Any:
        yield from ()
        return len(token_ids)

    for who, is_same in ((caller, True), (ADA, False)):
        tokens = await admission.tokenize(headed, who, counted, add_special_tokens=False)
        assert (tokens == length) == is_same
