"""Agents' turns with published templates: each turn finds the turn before it in the cache.

The model spells calls in its own way, and thinks before each call if its template keeps thoughts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle, pairwise, product
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from engine.link.messages import Welcome
from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.tokens.tokenizer import Tokenizer
from tests.examples import in_the_zoo
from tests.gateway.support.agents import (
    AGENTS,
    RECORDED,
    SYSTEM,
    Agent,
    OpenAIAgent,
    Stage,
    Used,
    asked,
    staged,
)
from tests.gateway.support.tool_models import ToolModel
from tests.zoo.families import FAMILIES as ALL
from tests.zoo.families import SERVED
from tests.zoo.family import Family
from tests.zoo.gateways import welcome_of
from tests.zoo.more_families import MORE

REUSED = 0.99
_THINK = ("<think>\n", "\n</think>\n\n")
_HARMONY = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant")
_NONE = (None, "")
_TAGS = ("<think>", "</think>")
# The thoughts that each family's model writes. None: no thoughts, or the template does not show
# them.
FAMILIES = {
    "qwen2.5": _NONE,
    "qwen3": _THINK,
    "qwen3-2507": _NONE,
    "qwen3-coder": _NONE,
    "qwen3.5": _THINK,
    "qwen3.6": _THINK,
    "llama3.1": _NONE,
    "llama3.2": _NONE,
    "gpt-oss": _HARMONY,
    "mistral-nemo": _NONE,
    "gemma4_v5": ("<|channel>thought\n", "\n<channel|>"),
    "glm4.5": ("\n<think>", "</think>\n"),
    "lfm2": _NONE,
    "lfm2.5": _TAGS,
}
# Families that only `make test-zoo` tests.
MORE_FAMILIES = {
    "glm4.6": ("\n<think>", "</think>\n"),
    "glm4.7-flash": ("", "</think>"),
    "kimi-k2": _NONE,
    "minimax-m2": ("", "\n</think>\n\n"),
    "seed-oss": ("<seed:think>", "</seed:think>\n"),
    "command-r7b": _NONE,
    "deepseek-v3.2": _NONE,
    "deepseek-v4": _NONE,
    "hy3": _NONE,
    "minicpm5": _THINK,
    "minimax-m1": _NONE,
    "minimax-m3": ("<mm:think>", "</mm:think>"),
    "gigachat3.1": _NONE,
    "phi4-mini": _NONE,
    "granite3.3": _NONE,
    "lfm2-8b-a1b": _NONE,
    "command-a+": ("<|START_THINKING|>", "<|END_THINKING|>"),
}
# Families whose templates drop thoughts, in a loop of calls or at the next question.
DROPPING = {
    "r1-distill-qwen": _THINK,
    "r1-distill-llama": _THINK,
    "deepseek-v3": _THINK,
    "deepseek-v3.1": _THINK,
    "qwen3": _THINK,
    "qwen3.6": _THINK,
    "gpt-oss": _HARMONY,
    "mistral-v13-thinks": ("[THINK]", "[/THINK]"),
}
# Families whose templates rewrite text or markers before a turn as a chat grows.
REWRITING = {
    "bielik": _THINK,
    "hermes2-pro": _NONE,
    "hermes3-tools": _NONE,
    "llama4": _NONE,
    "apriel-1.6": ("", "\n[BEGIN FINAL RESPONSE]\n"),
    "kimi-k3": ("", "<|close|>think<|sep|>"),
    "mistral-nemo": _NONE,
    "mistral-v11": _NONE,
    "command-r+": _NONE,
}
# Families whose templates take no text beside calls.
APART = {"gpt-oss": _HARMONY, "mistral-nemo": _NONE, "gemma4_v5": FAMILIES["gemma4_v5"]}
MORE_APART = ("command-r7b", "command-a+", "mistral-small-3.2", "muse-glimmer", "solar-open")
TEXTS = [
    ("I look for Oslo.", "Let me look it up.", asked("Oslo")),
    ("", "Now Bergen.", asked("Bergen")),
    ("Then the north.", "", asked("Bod\u00f8")),
    ("I have it all.", "It rains in all of them.", []),
]
KNOWN = FAMILIES | MORE_FAMILIES | REWRITING | DROPPING
# All other families that call.
OTHERS = [one.name for one in (*ALL, *MORE) if one.tools and one.name not in KNOWN]
KEPT = '{"preserve_thinking": true}'


@dataclass(frozen=True)
class ZooModel(ToolModel):
    """A model of a published family, with its template and control tokens."""

    family: Family

    @property
    def welcome(self) -> Welcome:
        return welcome_of(self.family, self.inner)


def model_of(name: str, directory: Path) -> ZooModel:
    one = next(one for one in (*ALL, *MORE) if one.name == name)
    one.write(directory)
    inner = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    opens, closes = KNOWN[name] if name in KNOWN else _thinking(directory)
    return ZooModel(one.tools or "", directory, inner, opens, closes, one)


def _thinking(directory: Path) -> tuple[str | None, str]:
    """Return how a model thinks after a plain question, by its template."""
    template = ChatTemplate.load(directory, Tokenizer.load(directory).control)
    if template is None or template.reasoning is None:
        return _NONE
    marks, asked = template.reasoning, [Message("user", (Text("So?"),))]
    prompt = template.render(asked, add_generation_prompt=True).text
    if marks.is_open(prompt):
        return "", marks.closes
    return _NONE if prompt.rstrip().endswith(marks.closes) else (marks.opens, marks.closes)


def reused(before: Used, after: Used) -> float:
    """Return the share of a turn's prompt and answer that the next turn found in the cache."""
    return after.cached / (before.prompt + before.answer)


def play_all(stage: Stage, agent: Agent) -> list[float]:
    stage.play(RECORDED)
    return [reused(*pair) for pair in pairwise([agent.turn() for _ in RECORDED])]


def follow_up(stage: Stage, agent: OpenAIAgent) -> list[float]:
    """Ask questions after the last turn, and two more; return the share of each turn that was
    reused.
    """
    stage.play([*RECORDED, RECORDED[-1], *RECORDED[:2], RECORDED[-1]])
    turns = [agent.turn() for _ in RECORDED]
    for question in ("And tomorrow?", "And then?", None, None):
        if question is not None:
            agent.said(question)
        turns.append(agent.turn())
    return [reused(*pair) for pair in pairwise(turns)]


def by_turns(here: Iterable[str], in_the_zoo: Iterable[str] = ()) -> list[Any]:
    """Pair each family with one dialect. One is enough, since dialects differ only before a
    template is used.
    """
    kept = set(zip(here, cycle(AGENTS), strict=False))
    return [
        pytest.param(*pair, marks=() if pair in kept else pytest.mark.zoo)
        for pair in product([*here, *in_the_zoo], AGENTS)
    ]


@pytest.mark.parametrize(("name", "dialect"), by_turns(FAMILIES, MORE_FAMILIES))
def test_an_agents_next_turn_finds_the_last_one(name: str, dialect: str, tmp_path: Path) -> None:
    model = model_of(name, tmp_path / "model")
    with staged(model, tmp_path / "data") as stage, stage.client() as http:
        found = play_all(stage, AGENTS[dialect](http))
    assert min(found) >= REUSED, found


@pytest.mark.parametrize(("name", "dialect"), by_turns(APART, MORE_APART))
def test_a_turn_with_a_text_beside_its_call_is_found(
    name: str, dialect: str, tmp_path: Path
) -> None:
    """Check templates that take no text beside calls."""
    model = model_of(name, tmp_path / "model")
    with staged(model, tmp_path / "data") as stage, stage.client() as http:
        stage.play(TEXTS)
        agent = AGENTS[dialect](http)
        turns = [agent.turn() for _ in TEXTS]
    found = [reused(*pair) for pair in pairwise(turns)]
    assert min(found) >= REUSED, found


@pytest.mark.parametrize(("name", "dialect"), by_turns(DROPPING, REWRITING))
def test_where_thoughts_are_kept_a_turn_finds_the_last_one_whatever_the_template_drops(
    name: str, dialect: str, tmp_path: Path
) -> None:
    model = model_of(name, tmp_path / "model")
    settings = {"default_chat_template_kwargs": KEPT}
    with staged(model, tmp_path / "data", **settings) as stage, stage.client() as http:
        agent = AGENTS[dialect](http, system=f"{dialect}: {SYSTEM}")
        found = {dialect: play_all(stage, agent)}
        found["asking again"] = follow_up(stage, OpenAIAgent(http, keeps_reasoning=False))
    assert min(map(min, found.values())) >= REUSED, found


@pytest.mark.zoo
@pytest.mark.parametrize("name", OTHERS)
def test_a_turn_of_any_other_family_finds_the_last_one(name: str, tmp_path: Path) -> None:
    model = model_of(name, tmp_path / "model")
    settings = {"default_chat_template_kwargs": KEPT}
    with staged(model, tmp_path / "data", **settings) as stage, stage.client() as http:
        found = play_all(stage, OpenAIAgent(http))
    assert min(found) >= REUSED, found


@pytest.mark.parametrize("one", [*SERVED[::3], *in_the_zoo(*SERVED[1::3], *SERVED[2::3])], ids=str)
def test_a_chats_next_turn_finds_the_last_one(one: Family, tmp_path: Path) -> None:
    """Test every third family with thoughts kept; `make test-zoo` tests all."""
    model = model_of(one.name, tmp_path / "model")
    settings = {"default_chat_template_kwargs": KEPT} if one.reasons else {}
    with staged(model, tmp_path / "data", **settings) as stage, stage.client() as http:
        agent = OpenAIAgent(http, system=2 * SYSTEM, tools=None)
        written = model.inner.encode(_written(model), add_special_tokens=False).ids
        stage.play_tokens(3 * [written])
        turns = []
        for question in (None, "And tomorrow?", "And then?"):
            if question is not None:
                agent.said(question)
            turns.append(agent.turn())
    assert min(reused(*pair) for pair in pairwise(turns)) >= REUSED


def _written(model: ZooModel) -> str:
    said = "It rains in all of them, and then some more."
    if model.family.tools == "harmony":
        return f"{_HARMONY[0]}So it rains.{_HARMONY[1]}<|channel|>final<|message|>{said}"
    return said if model.opens is None else f"{model.opens}So it rains.{model.closes}{said}"
