"""An engine with a fake runner, in a thread of this process, that serves a real socket."""

from __future__ import annotations

import threading
from contextlib import closing
from types import TracebackType
from typing import Any

from engine.link.codec import Codec
from engine.link.engine_end.socket_link import SocketLink
from engine.process import StopSignal, serve
from tests.doubles.engine.engine_process import fake_engine


class EngineThread:
    """An engine that serves a socket while its context is open."""

    def __init__(self, path: str, *, pace_s: float = 0.001, **more: Any) -> None:
        """Prepare to serve at `path`. `more` are further arguments of `fake_engine`."""
        self._path = path
        self._settings = {"pace_s": pace_s, **more}
        self._stop = StopSignal()
        self._bound = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="engine")
        self.dropped_frames = 0
        self.exit_code: int | None = None

    def __enter__(self) -> EngineThread:
        self._thread.start()
        self._bound.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.is_set = True
        self._thread.join(20)

    def _serve(self) -> None:
        with closing(SocketLink(self._path, codec=Codec())) as link:
            self._bound.set()
            core = fake_engine(link, **self._settings)
            self.exit_code = serve(core, self._stop, grace_s=0.0)
            self.dropped_frames = link.dropped_frames
