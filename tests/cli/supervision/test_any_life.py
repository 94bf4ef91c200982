"""Whole lives of a gateway and two engines, drawn by hypothesis."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from cli.supervision.serving_state import (
    Action,
    Announce,
    ChildName,
    ChildState,
    Drain,
    Event,
    Exited,
    Kill,
    Ready,
    RestartRequested,
    Say,
    ServingState,
    Silent,
    StartChild,
    StopRequested,
    Terminate,
    Tick,
)
from cli.supervision.supervisor import decide
from tests.cli.supervision.states import POLICY, WORLD
from tests.examples import examples


@dataclass
class World:
    """A gateway and two engines that do what they are ordered to, sooner or later, and a clock."""

    state: ServingState = field(
        default_factory=lambda: ServingState(
            engines={"engine-0": ChildState(), "engine-1": ChildState()}
        )
    )
    now: float = 0.0
    alive: dict[ChildName, bool] = field(default_factory=lambda: dict.fromkeys(WORLD, True))
    doomed: set[ChildName] = field(default_factory=set)
    stops: int = 0
    greetings: int = 0

    def tell(self, event: Event) -> None:
        self.state, actions = decide(self.state, event, self.now, POLICY)
        for action in actions:
            self.obey(action)

    def obey(self, action: Action) -> None:
        match action:
            case StartChild(name):
                assert not self.alive[name], f"two of {name} at once"
                assert self.stops == 0, "started after a stop"
                self.alive[name] = True
            case Terminate(name) | Kill(name):
                assert self.alive[name], f"{name} is gone already"
                silent = self.state.phase == "serving"
                assert name == "gateway" or silent or not self.alive["gateway"], "gateway first"
                self.doomed.add(name)
            case Drain(name):
                assert self.alive[name], f"{name} is gone already"
                assert self.stops == 0, "a restart after a stop"
                self.doomed.add(name)
            case Announce():
                self.greetings += 1
            case Say():
                pass

    def die(self, name: ChildName, status: int) -> None:
        if self.alive[name]:
            self.alive[name] = False
            self.doomed.discard(name)
            self.tell(Exited(name, status))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.state.wake_at is not None and self.now >= self.state.wake_at:
            self.tell(Tick())

    def stop(self) -> None:
        self.stops += 1
        self.tell(StopRequested())

    def check(self) -> None:
        assert self.greetings <= 1
        assert (self.state.phase == "done") <= (not any(self.alive.values()))
        for name in WORLD:
            child = self.state.child(name)
            assert child.alive == self.alive[name]
            if self.state.phase == "serving" and not child.alive:
                assert child.due is not None, f"nobody will start the {name}"
                assert child.due <= self.now + POLICY.backoff.max_delay_s
        if self.state.phase in ("draining", "stopping"):
            assert self.doomed or self.state.wake_at is not None, "nobody will end this"


def steps() -> st.SearchStrategy[list[tuple[str, ChildName, float]]]:
    happening = st.sampled_from(
        ["dies", "dies", "ready", "silent", "stop", "restart", "wait", "wait", "wait"]
    )
    child = st.sampled_from(WORLD)
    return st.lists(st.tuples(happening, child, st.floats(0.0, 120.0)), max_size=40)


@examples(4)
@given(steps())
def test_any_life_ends_with_nothing_left_running(life: list[tuple[str, ChildName, float]]) -> None:
    world = World()
    for happening, name, seconds in life:
        if world.state.phase == "done":
            break
        match happening:
            case "dies":
                world.die(name, 1 if name == "gateway" else -9)
            case "silent":
                world.tell(Silent(name))
            case "ready":
                world.tell(Ready(name))
            case "stop":
                world.stop()
            case "restart":
                world.tell(RestartRequested())
            case _:
                world.wait(seconds)
        world.check()
    if world.state.phase != "done":
        world.stop()
    for name in (*WORLD, "gateway"):
        if world.alive[name] and name in world.doomed:
            world.die(name, 0)
        world.check()
    assert world.state.phase == "done"
    assert not any(world.alive.values())
