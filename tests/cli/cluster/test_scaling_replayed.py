"""Engines are added for a burst and removed after it. Under a steady load their number settles.

The engines run the real scheduling core (`tests.doubles.modelled`), and their waits are predicted
as in a real engine. Ray is a double. An engine is ready START_S after it is placed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np

from cli.cluster.placing import engine_names, place, reports
from cli.cluster.scaler import Scaler
from cli.cluster.scaling import DOWN_AFTER_S, UP_AFTER_S
from cli.cluster.settings import read_settings
from cli.cluster.wait import PredictedWait, Prediction
from engine.link.event_messages import Event, Finished, Tokens
from engine.link.query import Query, R
from engine.queries.queries import Answered
from engine.scheduling.step_builder import StepLimits
from tests.doubles.fake_ray import FakeRay
from tests.doubles.modelled.replay import VOCAB, Replay, request
from tests.gateway.support.manual_clock import ManualClock

MOST = 4
TARGET_S = 2.0
START_S = 15.0
MAX_RUNNING = 64
PROMPT = 16_000  # number of tokens, which one engine computes in 0.44 s
RATE = 5.0  # requests per second; at 0.44 s each, they need 2.2 engines


@dataclass
class Modelled:
    """A modelled engine that starts at the time at which it was placed."""

    placed: float
    replay: Replay = field(default_factory=lambda: Replay(StepLimits(PROMPT, MAX_RUNNING, None)))
    under_way: int = 0

    def __post_init__(self) -> None:
        self._predicted = PredictedWait(MAX_RUNNING, self.replay.time)

    def serve(self, number: int, waited: list[float]) -> None:
        asked_at = self.replay.time.now
        prompt = np.random.default_rng(number).integers(10, VOCAB, PROMPT).astype(np.int32)

        def hear(event: Event) -> None:
            if isinstance(event, Tokens) and event.reused is not None:
                waited.append(self.replay.time.now - asked_at)
            elif isinstance(event, Finished):
                self.under_way -= 1

        self.under_way += 1
        self.replay.link.say(request(f"r{number}", "flow", prompt, 2), hear)

    def run_until(self, now: float) -> None:
        if self.under_way:
            self.replay.run(lambda: self.replay.time.now >= now or not self.under_way)
        self.replay.time.move(now)

    def predicted(self) -> Prediction:
        """Return the prediction that the engine's host would request."""
        return asyncio.run(self._predicted.look(self))

    async def ask(self, query: Query[R], within_s: float | None = None) -> R:
        core = self.replay.core
        return cast("R", core.queries.answer(cast("Answered", query), core._clients.alive))


class Cluster:
    """A simulated cluster.

    Requests go to the engine with the shortest wait, and scaling decides every second.
    """

    def __init__(self, directory: Path, most: int) -> None:
        file = directory / "cluster.yaml"
        file.write_text(f"max_engines: {most}\ntarget_wait_s: {TARGET_S}\n")
        settings = read_settings(file)
        assert settings.scaling is not None
        self.ray, self.clock = FakeRay(), ManualClock()
        self.scaler = Scaler(
            self.ray, partial(place, self.ray, settings), settings.scaling, self.clock
        )
        self.engines: dict[int, Modelled] = {}
        self.counts: list[int] = []  # number of engines in each second
        self.waited: list[float] = []  # seconds to the first token of each request
        self.asked = 0
        self._owed = 0.0
        place(self.ray, settings, 0)
        self.engines[0] = Modelled(-START_S)
        self._new(0.0)

    def run(self, seconds: int, rate: float) -> None:
        for _ in range(seconds):
            self._second(rate)

    def _second(self, rate: float) -> None:
        now = float(len(self.counts) + 1)
        self._owed += rate
        while self._owed >= 1.0:
            self._owed -= 1.0
            ready = [one for number, one in self.engines.items() if self._state(number) == "ready"]
            soonest = min(ready, key=lambda one: one.under_way)
            soonest.serve(self.asked, self.waited)
            self.asked += 1
        for number, one in self.engines.items():
            one.run_until(now)
            self._tell(number, one, now)
        self.clock.advance(1.0)
        self.scaler.look(reports(self.ray, engine_names(self.ray)))
        self._new(now)
        self.counts.append(len(engine_names(self.ray)))

    def _tell(self, number: int, one: Modelled, now: float) -> None:
        actor = self.ray.actors[f"engine-{number}"]
        if self._state(number) == "stopping":
            if not one.under_way:
                actor.become("drained")
        elif now - one.placed >= START_S:
            actor.become("ready", *one.predicted())

    def _state(self, number: int) -> str:
        said = self.ray.actors[f"engine-{number}"].says
        return "starting" if said is None else said.state

    def _new(self, now: float) -> None:
        names = engine_names(self.ray)
        self.engines = {n: self.engines.get(n) or Modelled(now) for n in names}
        for number, one in self.engines.items():
            one.replay.time.move(max(now, 0.0))
            if now - one.placed >= START_S and self._state(number) == "starting":
                self._tell(number, one, now)


def changes(counts: Sequence[int]) -> list[tuple[int, int]]:
    """List the seconds at which the number of engines changed, and each change."""
    return [(second, b - a) for second, (a, b) in enumerate(pairwise(counts), 1) if a != b]


def test_after_a_burst_comes_as_many_engines_as_it_takes_and_they_go_when_it_is_over(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path, MOST)
    cluster.run(60, RATE)
    ups = changes(cluster.counts)
    assert ups[0] == (ups[0][0], 1)
    assert ups[0][0] <= TARGET_S + UP_AFTER_S + 10
    assert all(later - sooner >= START_S for (sooner, _), (later, _) in pairwise(ups))
    cluster.run(4 * int(DOWN_AFTER_S), 0.1)
    found = changes(cluster.counts)
    assert [change for _, change in found] == sorted([change for _, change in found], reverse=True)
    assert (max(cluster.counts) <= MOST, cluster.counts[-1]) == (True, 1), "all have left again"
    downs = [second for second, change in found if change < 0]
    assert all(later - sooner >= DOWN_AFTER_S for sooner, later in pairwise(downs))
    assert len(cluster.waited) == cluster.asked, "nothing is lost by those that leave"


def test_a_load_that_stays_is_met_and_the_number_comes_to_rest(tmp_path: Path) -> None:
    """Scale to a steady load, and then keep the number of engines.

    The load needs more than two engines. With three, no request waits, and none of them is removed.
    """
    cluster, alone = Cluster(tmp_path, MOST), Cluster(tmp_path, 1)
    cluster.run(370, RATE)
    assert [change for _, change in changes(cluster.counts)] == [1, 1, 1, -1]
    assert cluster.counts[-1] == 3
    assert max(cluster.waited[-500:]) < TARGET_S
    alone.run(60, RATE)
    assert max(alone.waited[-10:]) > 10 * TARGET_S, "the control: one engine is too few"
