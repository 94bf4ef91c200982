"""The functions of Ray that Ratoon uses, without processes. A test sets the actors' reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec

from cli.cluster.actor import ActorState, EngineReport


class GetTimeoutError(Exception):
    """The error of an answer that did not come in time."""


class RayActorError(Exception):
    """The error of an actor that has died or could not be started."""

    actor_init_failed = False


@dataclass(frozen=True)
class NotMade:
    """The reply of an actor that Ray could not make; `text` is Ray's message."""

    text: str


@dataclass
class FakeActor:
    """The actor of an engine. `says` is its report, or None while it has no machine."""

    options: dict[str, Any]
    says: EngineReport | None = None
    drains: int = 0
    not_made: NotMade | None = None

    @property
    def __ray_ready__(self) -> Any:
        return SimpleNamespace(remote=lambda: self.not_made or self.says)

    @property
    def report(self) -> Any:
        return SimpleNamespace(remote=lambda: self.says)

    @property
    def drain(self) -> Any:
        return SimpleNamespace(remote=self._drain)

    def _drain(self) -> None:
        self.drains += 1
        self.become("stopping")

    def become(
        self, state: ActorState, wait_s: float | None = None, used: float | None = None
    ) -> None:
        self.says = EngineReport(state=state, address="tcp://n:1", pid=1, wait_s=wait_s, used=used)


@dataclass
class FakeRay:
    """A replacement of the module `ray`."""

    actors: dict[str, FakeActor] = field(default_factory=dict)
    machines: tuple[str, ...] = ("a", "lost")
    # resources of each actor, by name
    resources: dict[str, float] = field(default_factory=lambda: {"CPU": 2.0})
    not_made: dict[str, NotMade] = field(default_factory=dict)  # failing actors, by name
    exceptions: Any = field(
        default_factory=lambda: SimpleNamespace(
            GetTimeoutError=GetTimeoutError, RayActorError=RayActorError
        )
    )

    connected_to: list[str] = field(default_factory=list)
    gcs_address: str = ""

    def init(self, *, address: str, **_: Any) -> None:
        self.connected_to.append(address)

    def shutdown(self) -> None:
        pass

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address=self.gcs_address)

    @property
    def util(self) -> Any:
        return SimpleNamespace(list_named_actors=lambda: list(self.actors))

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeManagerAddress": one, "Alive": one != "lost", "Resources": self.resources}
            for one in self.machines
        ]

    def remote(self, kind: type) -> Any:
        def options(**given: Any) -> Any:
            if "memory" in given.get("resources", {}):
                raise ValueError("Use the 'memory' keyword,\nof Ray")

            def start(*_: Any) -> FakeActor:
                name = given["name"]
                if name in self.not_made:
                    return FakeActor(given, not_made=self.not_made[name])
                return self.actors.setdefault(name, FakeActor(given))

            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)

    def get_actor(self, name: str) -> FakeActor:
        if name not in self.actors:
            raise ValueError(name)
        return self.actors[name]

    def kill(self, actor: FakeActor, *, no_restart: bool) -> None:
        assert no_restart
        del self.actors[actor.options["name"]]

    def wait(self, asked: Sequence[Any], **_: Any) -> None:
        return None

    def get(self, answer: EngineReport | NotMade | None, *, timeout: float) -> bytes:
        if answer is None:
            raise GetTimeoutError
        if isinstance(answer, NotMade):
            died = RayActorError(answer.text)
            died.actor_init_failed = True
            raise died
        return msgspec.json.encode(answer)
