"""`ratoon chat` prints each turn's token counts, and each turn finds the turn before it cached.

The output is a pipe. The gateway is real, with a fake engine.
"""

import re

import pytest

from cli.commands import COMMANDS
from engine.errors import EngineDied
from tests.cli.console import Console, Printed
from tests.doubles.engine.fake_engine import FakeEngine, failing_at, saying
from tests.doubles.gateway.served import Served

NUMBERS = re.compile(r"\[cached (\d+) of (\d+) prompt tokens, first token after \d+ ms\]")


@pytest.fixture(autouse=True)
def answering(engine: FakeEngine) -> None:
    engine.reset()
    engine.script = saying("Hello.")


def talked(console: Console, gateway: Served, lines: str, *flags: str) -> Printed:
    env = {"RATOON_URL": gateway.url, "RATOON_KEY": gateway.key}
    return console.type("chat", *flags, env=env, answer=lines)


def test_each_turn_has_its_numbers_and_finds_the_one_before(
    console: Console, gateway: Served
) -> None:
    asked = "What is a ratoon, and why is it called so?\n\nAnd a prefix?\n"
    printed = talked(console, gateway, asked, "--system", "Answer shortly. " * 4)
    assert printed.status == 0
    assert printed.out == "Hello.\nHello.\n"
    first, second = NUMBERS.findall(printed.err)
    assert first[0] == "0"
    assert 0 < int(second[0]) < int(second[1])
    assert int(second[1]) > int(first[1]), "the conversation goes on"


def test_a_temperature_is_sent_if_one_is_said(
    console: Console, gateway: Served, engine: FakeEngine
) -> None:
    talked(console, gateway, "Hello?\n", "--temperature", "0")
    talked(console, gateway, "Hello?\n")
    assert [one.sampling.temperature for one in engine.requests] == [0.0, 1.0]
    assert talked(console, gateway, "Hello?\n", "--temperature", "3").status == 2


def test_exit_ends_it(console: Console, gateway: Served) -> None:
    assert talked(console, gateway, "/exit\nHello?\n").out == ""
    assert talked(console, gateway, "Hello?\n /exit \nHello?\n").out == "Hello.\n"
    assert talked(console, gateway, "").status == 0


def test_a_turn_that_fails_is_told_and_left_out(
    console: Console, gateway: Served, engine: FakeEngine
) -> None:
    engine.pace = failing_at(2, EngineDied("the engine died"))
    printed = talked(console, gateway, "Hello?\nHello again?\n")
    assert printed.status == 0
    assert printed.out == "He\nHe\n"
    assert printed.err.count("ratoon: ") == 2
    assert not NUMBERS.search(printed.err)


def test_a_bad_key_ends_it_before_a_turn(console: Console, gateway: Served) -> None:
    printed = console.type("chat", "--url", gateway.url, "--key", "sk-wrong", answer="Hello?\n")
    assert printed.status == 1
    assert "(401)" in printed.err
    assert "chat" in COMMANDS["Operate"]
