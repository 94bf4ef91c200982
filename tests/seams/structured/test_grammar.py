"""Answers under a grammar in a whole engine are always valid, and delay no other request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from engine.errors import InvalidGrammar
from engine.link.event_messages import Failed, Tokens
from engine.link.messages import Cancel, Grammar, SamplingParams
from prefix_cache.namespace import Namespace
from tests.doubles.engine.tiny_model import EOS, byte_tokenizer
from tests.doubles.grammars.hard_grammars import deep, endless, huge
from tests.engine.rigs.checkpoints import Recipe, make_checkpoint
from tests.engine.rigs.hand_driven import random_prompt, sampling
from tests.seams.support.real_engine import CLIENT, Bounds, RealEngine

NAMESPACE, OTHER = Namespace(b"n" * 16), Namespace(b"o" * 16)
PROMPT = random_prompt(21)
MAX_TOKENS = 440
Count = Annotated[int, msgspec.Meta(ge=0, le=99)]


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(max_length=8)]
    size: Literal["small", "large"]
    counts: Annotated[list[Count], msgspec.Meta(max_length=2)] = []


SCHEMA = msgspec.json.encode(msgspec.json.schema(Answer)).decode()
OBJECT = Grammar("json_schema", SCHEMA)
HOW: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 1.0, "seed": 5},
    "hot": {"temperature": 5.0, "seed": 6, "top_p": 0.95},
    "past its end": {"temperature": 1.0, "seed": 7, "ignore_eos": True, "min_tokens": 400},
}
both = pytest.mark.parametrize("overlap_scheduling", [False, True])


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a tiny random model of 300 logits, and a tokenizer of 259 tokens."""
    directory = tmp_path_factory.mktemp("bytes")
    make_checkpoint(Recipe("Llama", {"eos_token_id": EOS}), directory)
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    return directory


@contextmanager
def running(model_dir: Path, *, overlap_scheduling: bool = False) -> Iterator[RealEngine]:
    engine = RealEngine(str(model_dir), Bounds(128, 16, 64, 8, overlap_scheduling))
    try:
        yield engine
    finally:
        engine.close()


def wish(grammar: Grammar | None, **how: Any) -> SamplingParams:
    return sampling(MAX_TOKENS, **{"grammar": grammar, **how})


def is_over(engine: RealEngine, name: str) -> bool:
    return any(not isinstance(event, Tokens) for event in engine.link.events(name))


def text(engine: RealEngine, name: str) -> str:
    return bytes(one for one in engine.tokens(name) if one != EOS).decode()


@both
@pytest.mark.parametrize("how", HOW)
def test_an_answer_under_a_schema_is_of_it_and_ends_by_itself(
    model_dir: Path, how: str, overlap_scheduling: bool
) -> None:
    with running(model_dir, overlap_scheduling=overlap_scheduling) as engine:
        engine.submit("bound", PROMPT, wish(OBJECT, **HOW[how]), namespace=NAMESPACE)
        engine.run()
        assert engine.finished("bound").reason == "stop"
        assert msgspec.json.decode(text(engine, "bound"), type=Answer)
        engine.expect_nothing_left()


def test_without_the_schema_it_says_something_else(model_dir: Path) -> None:
    with running(model_dir) as engine:
        engine.submit("free", PROMPT, sampling(40), namespace=NAMESPACE)
        engine.run()
        assert not bytes(one % 256 for one in engine.tokens("free")).startswith(b"{")


@both
@pytest.mark.parametrize(("regex", "said"), [("ab", "ab"), ("(ab){30}", "ab" * 30)])
def test_what_can_only_end_ends_without_a_token_for_it(
    model_dir: Path, regex: str, said: str, overlap_scheduling: bool
) -> None:
    with running(model_dir, overlap_scheduling=overlap_scheduling) as engine:
        engine.submit("bound", PROMPT, wish(Grammar("regex", regex)), namespace=NAMESPACE)
        engine.run()
        end = engine.finished("bound")
        assert (end.reason, end.stop_token_id) == ("stop", None)
        assert end.completion_tokens == len(said)
        assert text(engine, "bound") == said


def test_what_may_go_on_goes_on_to_the_last_token(model_dir: Path) -> None:
    with running(model_dir) as engine:
        how = sampling(80, grammar=Grammar("regex", "(ab)+"), min_tokens=80)
        engine.submit("bound", PROMPT, how, namespace=NAMESPACE)
        engine.run()
        assert engine.finished("bound").reason == "length"
        assert text(engine, "bound") == "ab" * 40


@pytest.mark.parametrize("make", [endless, deep, huge])
def test_a_grammar_that_does_not_compile_fails_alone_and_delays_nobody(
    model_dir: Path, make: Any
) -> None:
    with running(model_dir) as engine:
        engine.submit("bad", PROMPT, wish(make()), namespace=NAMESPACE)
        engine.submit("free", random_prompt(9), sampling(20), namespace=NAMESPACE)
        engine.submit("bound", PROMPT, wish(OBJECT), namespace=OTHER)
        engine.run()
        end = engine.link.last("bad")
        assert isinstance(end, Failed)
        assert end.code == InvalidGrammar.code
        assert engine.finished("free").completion_tokens == 20
        assert msgspec.json.decode(text(engine, "bound"), type=Answer)
        engine.expect_nothing_left()


def test_who_waits_for_a_grammar_lets_others_pass(model_dir: Path) -> None:
    with running(model_dir) as engine:
        for number in range(20):  # more requests than are examined at a flow's head
            engine.submit(f"bad{number}", PROMPT, wish(endless()), namespace=NAMESPACE)
        engine.submit("free", random_prompt(9), sampling(20), namespace=OTHER)
        while not is_over(engine, "free"):
            engine.step()
        assert engine.finished("free").completion_tokens == 20
        assert not any(is_over(engine, f"bad{number}") for number in range(20))
        for number in range(20):
            engine.link.say(Cancel(request_id=f"bad{number}"), CLIENT)
        engine.run()
        assert engine.finished("bad0").reason == "cancelled"
        engine.expect_nothing_left()


def test_a_model_without_a_tokenizer_refuses_grammars_and_serves_the_rest(
    model_dir: Path, tmp_path: Path
) -> None:
    for path in model_dir.iterdir():
        if path.name != "tokenizer.json":
            (tmp_path / path.name).symlink_to(path)
    with running(tmp_path) as engine:
        engine.submit("bound", PROMPT, wish(OBJECT), namespace=NAMESPACE)
        engine.submit("free", PROMPT, sampling(3), namespace=NAMESPACE)
        engine.run()
        end = engine.link.last("bound")
        assert isinstance(end, Failed)
        assert end.code == InvalidGrammar.code
        assert engine.finished("free").completion_tokens == 3


@pytest.mark.parametrize("graph_tokens", [0, 64])
def test_a_full_batch_says_the_same_with_and_without_overlap(
    model_dir: Path, graph_tokens: int
) -> None:
    """Rows with a constraint run beside free rows. One row ends early, and one is cancelled."""
    said: list[dict[str, list[int]]] = []
    for overlap_scheduling in (False, True):
        bounds = Bounds(512, 16, 256, 64, overlap_scheduling, graph_tokens)
        engine = RealEngine(str(model_dir), bounds)
        for number in range(64):
            grammar = None if number % 8 == 7 else OBJECT
            how: dict[str, Any] = {"grammar": grammar, "ignore_eos": True, "seed": number}
            asked = sampling(12 + number % 3, 1.0, **how)
            prompt = random_prompt(9, seed=number)
            engine.submit(str(number), prompt, asked, namespace=NAMESPACE)
        while not all(engine.link.tokens(str(number)) for number in range(64)):
            engine.step()
        engine.link.say(Cancel("5"), CLIENT)
        engine.run()
        said.append({str(n): engine.tokens(str(n)) for n in range(64) if n != 5})
        engine.expect_nothing_left()
        engine.close()
    assert said[0] == said[1]
    assert all(len(said[0][str(n)]) == 12 + n % 3 for n in range(64) if n % 8 == 7)
