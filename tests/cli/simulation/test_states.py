"""Replays with recurrent states: a hit ends at a stored state, as in the engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.load.requests.trace import read_trace
from cli.simulation.replay import Replay, Replayed, TierSizes, admit
from cli.simulation.states import StateCosts
from tests.cli.console import Console
from tests.cli.simulation.traces import row, write
from tests.doubles.engine.shapes import SHAPES

PARTING = [row(at, [1, 2, last, 30 + at]) for at, last in enumerate([7, 8, 9, 10])]


def replayed(tmp_path: Path, rows: list[dict[str, object]], states: StateCosts | None) -> Replayed:
    trace = read_trace(write(tmp_path / "t", rows), 10)
    replay = Replay(10, TierSizes(1000), "lru", None, states)
    found = replay.run(admit(trace), lambda _: None)
    replay.check()
    return found


def test_where_the_second_prompt_parts_the_third_begins(tmp_path: Path) -> None:
    plain = replayed(tmp_path, PARTING, None)
    assert [one.cached for one in plain.served] == [0, 20, 20, 20]
    assert plain.states is None
    found = replayed(tmp_path, PARTING, StateCosts(1000, 10, 1.0))
    assert [one.cached for one in found.served] == [0, 0, 20, 20]
    states = found.states
    assert states is not None
    assert (states.slots, states.hits, states.cut_tokens, states.refused) == (13, 2, 20, 0)
    assert states.held == states.made == 5  # states at the fork, and at the end of each prompt


def test_few_slots_lose_states_and_hits(tmp_path: Path) -> None:
    rows = [row(at, [at % 3, 1, 2, 40 + at]) for at in range(30)]
    many, few = (replayed(tmp_path, rows, StateCosts(1000, 10, ratio)) for ratio in (1.0, 0.0))
    assert many.states is not None
    assert few.states is not None
    assert few.states.slots == 3
    assert few.states.evicted > many.states.evicted
    assert sum(one.cached for one in few.served) < sum(one.cached for one in many.served)


class TestTyped:
    @pytest.fixture
    def model(self, tmp_path: Path) -> str:
        (tmp_path / "config.json").write_text(json.dumps(SHAPES["qwen3.5-27b"]))
        return str(tmp_path)

    @pytest.fixture
    def trace(self, tmp_path: Path) -> str:
        return str(write(tmp_path / "trace.jsonl", PARTING))

    def test_a_model_with_states_reports_them(
        self, console: Console, model: str, trace: str
    ) -> None:
        words = ("simulate", trace, "--block-size", "10", "--model", model)
        states = console.type(*words, "--json").json["states"]
        assert states["state_bytes"] == 48 * (48 * 128 * 128 * 4 + 3 * 10240 * 2)
        assert (states["hits"], states["cut_tokens"]) == (2, 20)
        assert "slots of 146.8 MiB" in console.type(*words).out
        none = console.type(*words, "--state-cache-ratio", "0", "--json").json["states"]
        assert none["slots"] == 3

    def test_without_recurrent_layers_nothing_is_said_of_states(
        self, console: Console, trace: str
    ) -> None:
        words = ("simulate", trace, "--block-size", "10", "--json")
        bare, plain = console.type(*words).json, console.type(*words, "--model", "handbook").json
        assert bare.keys() == plain.keys()
        assert "states" not in bare
        assert bare["token_hit_rate"] == plain["token_hit_rate"] == 60 / 160
