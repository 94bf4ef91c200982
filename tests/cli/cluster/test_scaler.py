"""Scaling of engines up and down, with a double of Ray that records the calls to it."""

from __future__ import annotations

import socket
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from cli.cluster.cluster import _watch, check_machines, end_here
from cli.cluster.head import NoRay
from cli.cluster.placed import PlacedEngines
from cli.cluster.placing import drain, engine_names, machines, place, ray_at, remove, reports
from cli.cluster.scaler import Scaler
from cli.cluster.scaling import DOWN_AFTER_S, UP_AFTER_S
from cli.cluster.settings import ClusterSettings, read_settings
from cli.errors import BadSetting, ServingFailed
from tests.doubles.fake_ray import FakeRay, NotMade
from tests.gateway.support.manual_clock import ManualClock


class Rig:
    """A cluster with one engine, which may grow to three engines."""

    def __init__(self, settings: ClusterSettings) -> None:
        assert settings.scaling is not None
        self.ray, self.clock, self.settings = FakeRay(), ManualClock(), settings
        placing = partial(place, self.ray, settings)
        placing(0)
        self.scaler = Scaler(self.ray, placing, settings.scaling, self.clock)

    def look(self, seconds: float = 0.0) -> list[int]:
        self.clock.advance(seconds)
        self.scaler.look(reports(self.ray, engine_names(self.ray)))
        return engine_names(self.ray)

    def wait(self, number: int, seconds: float) -> None:
        self.ray.actors[f"engine-{number}"].become("ready", seconds)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    path = tmp_path / "cluster.yaml"
    path.write_text("max_engines: 3\nnum_gpus: 1\nresources: {fast: 2}\ntarget_wait_s: 2")
    return Rig(read_settings(path))


def test_an_actor_asks_for_what_its_engine_needs_and_outlives_who_made_it(rig: Rig) -> None:
    options = rig.ray.actors["engine-0"].options
    assert (options["num_gpus"], options["num_cpus"], options["resources"]) == (1, 1, {"fast": 2})
    assert (options["lifetime"], options["max_restarts"]) == ("detached", -1)
    assert reports(rig.ray, engine_names(rig.ray)) == {0: None}, "it has no machine yet"


def test_an_engine_that_another_command_has_taken_away_may_be_taken_away_again(rig: Rig) -> None:
    place(rig.ray, rig.settings, 1)
    for _ in range(2):
        drain(rig.ray, 0)
        remove(rig.ray, 0)
        assert list(rig.ray.actors) == ["engine-1"]


def test_engines_come_while_requests_wait_and_go_when_none_does(rig: Rig) -> None:
    assert rig.look(UP_AFTER_S) == [0]
    rig.wait(0, 9.0)
    assert rig.look() == [0]
    assert rig.look(UP_AFTER_S) == [0, 1]
    assert rig.look(UP_AFTER_S) == [0, 1], "what the new one changes is not known yet"
    rig.wait(0, 0.1)
    rig.wait(1, 0.1)
    assert rig.look() == [0, 1]
    assert rig.look(DOWN_AFTER_S) == [0, 1]
    assert rig.ray.actors["engine-1"].drains == 1, "it ends what it has begun"
    assert rig.ray.actors["engine-0"].drains == 0
    rig.ray.actors["engine-1"].become("drained")
    assert rig.look() == [0]
    assert rig.look(2 * DOWN_AFTER_S) == [0]


def test_an_engine_that_cannot_start_is_not_answered_by_more_of_them(rig: Rig) -> None:
    rig.ray.actors["engine-0"].become("failed")
    assert rig.look(UP_AFTER_S) == [0]
    assert rig.look(UP_AFTER_S) == [0]


def test_without_ray_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(NoRay, match=r"pip install 'ratoon\[cluster\]'"), ray_at(None):
        pass


def test_a_ray_that_was_asked_to_end_as_well_is_not_asked_for_its_engines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Do not query a Ray that was asked to end.

    Such a call waits for a minute, then ends the process with an error.
    """
    path = tmp_path / "cluster.yaml"
    path.write_text("engines: 1")
    ray = FakeRay()
    place(ray, read_settings(path), 0)
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        ray.gcs_address = f"127.0.0.1:{head.getsockname()[1]}"
        end_here(ray, 0.0, settle_s=0.0)
        assert ray.get_actor("engine-0").drains == 0
        assert "Ray was asked to end as well" in capsys.readouterr().out
        head.listen()
        end_here(ray, 0.0, settle_s=0.0)
    assert ray.actors == {}, "the control"
    assert capsys.readouterr().out == "stopping: what engines have begun may finish\n"


@pytest.mark.parametrize(
    ("needs", "told"),
    [(8, "waiting - num_gpus: an engine needs 8, and no machine has more: 0"), (0, "waiting")],
)
def test_an_engine_that_no_machine_has_room_for_says_what_it_waits_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], needs: int, told: str
) -> None:
    """Report the resources that no machine has for an engine, while the engine waits: another
    machine may still join a running Ray.
    """
    path = tmp_path / "cluster.yaml"
    path.write_text(f"ray_address: auto\nnum_gpus: {needs}")
    ray, settings, stop = FakeRay(), read_settings(path), threading.Event()
    placed = PlacedEngines(ray, settings)
    placed.place(0)
    _watch(ray, settings, placed, stop, stop.set)
    assert capsys.readouterr().out == f"engine 0: {told}\n"


OTHER_VERSION = """\
The actor died because of an error raised in its creation task, ray::engine-0:NodeActor.__init__()
RuntimeError: The actor with name NodeActor failed to import on the worker. This may be because
    return self.__get_result()
           ^^^^^^^^^^^^^^^^^^^
ModuleNotFoundError: No module named 'cli.cluster'"""


def test_an_engine_that_ray_cannot_make_has_failed_and_says_why(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    """Report the error of an engine that Ray cannot create.

    Ray forgets such an engine's name, as if it had never been requested.
    """
    ray = FakeRay(not_made={"engine-0": NotMade(OTHER_VERSION)})
    placed = PlacedEngines(ray, rig.settings)
    placed.place(0)
    with pytest.raises(ServingFailed, match="no engine can start"):
        _watch(ray, rig.settings, placed, threading.Event(), lambda: None)
    told = "which needs this version of ratoon: ModuleNotFoundError: No module named 'cli.cluster'"
    assert capsys.readouterr().out == (
        f"engine 0: failed - Ray cannot make it on its machine, {told}\n"
    )
    ray.not_made.clear()
    placed.place(0)
    assert placed.reports() == {0: None}, "the control: it may be made yet"
    ray.actors["engine-0"].become("ready")
    report = placed.reports()[0]
    assert report is not None
    assert report.state == "ready"


def test_an_engine_that_another_command_has_placed_since_has_not_failed(rig: Rig) -> None:
    ray = FakeRay(not_made={"engine-0": NotMade(OTHER_VERSION)})
    placed = PlacedEngines(ray, rig.settings)
    placed.place(0)

    def states() -> list[str | None]:
        return [None if one is None else one.state for one in placed.reports().values()]

    assert states() == ["failed"], "the control"
    ray.not_made.clear()
    PlacedEngines(ray, rig.settings).place(0)
    ray.actors["engine-0"].become("ready")
    assert states() == ["ready"]
    ray.actors["engine-0"].become("stopping")
    assert states() == ["stopping"]


def test_an_engine_is_added_for_one_that_is_gone(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.ray.actors.clear()
    assert rig.look() == [0]
    assert capsys.readouterr().out == "engine 0: added, there are too few\n"


def test_what_ray_says_of_what_an_engine_needs_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("resources: {memory: 5}")
    with pytest.raises(NoRay, match=r"^Ray refuses an engine: Use the 'memory' keyword, of Ray$"):
        place(FakeRay(), read_settings(path), 0)


def test_engines_on_several_machines_need_a_state_that_all_reach(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("engines: 2")
    ray = FakeRay()
    check_machines(read_settings(path), machines(ray))
    ray.machines = ("a", "b")
    with pytest.raises(BadSetting, match="redis_url: Ray has 2 machines"):
        check_machines(read_settings(path), machines(ray))
    path.write_text("engines: 2\nredis_url: redis://r:6379/0\nlink_key_file: /k")
    check_machines(read_settings(path), machines(ray))
