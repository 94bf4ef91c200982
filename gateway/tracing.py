"""The moments of a request that a trace records.

    begin -> running( admitted -> first_token -> used )

Without tracing these calls do nothing. A trace contains names, counts and times: no text of a
prompt or an answer, no key, no tenant.

Knows: the moments of a request. Does not know: how spans are made (`spans.py`) or where they go
(`otlp.py`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from engine.messages import Timing
from gateway.admission import Ask
from gateway.request_head import TraceLink


class Trace(Protocol):
    """One request's trace; each method is called at most once, in this order."""

    def running(self) -> AbstractContextManager[None]:
        """The trace ends with this block, however it is left."""
        ...

    def admitted(self) -> None:
        """The request is on its way to the engine."""
        ...

    def first_token(self, timing: Timing | None) -> None:
        """Its first token has come; `timing` is the engine's part of the time, if reported."""
        ...

    def used(
        self, outcome: str, *, prompt_tokens: int, cached_tokens: int, generated_tokens: int
    ) -> None:
        """How an admitted request ended: a finish reason or an error's code, and its tokens."""
        ...


class Tracing(Protocol):
    """Begins traces."""

    def begin(self, ask: Ask, route: str, arrived: float, link: TraceLink) -> Trace:
        """The trace of a request that came at `arrived` (monotonic seconds) on `route`.

        It continues the trace that `link` names, and writes its own name into `link`.
        """
        ...


class Untraced:
    """A trace that records nothing."""

    def running(self) -> AbstractContextManager[None]:
        """Nothing."""
        return nullcontext()

    def admitted(self) -> None:
        """Nothing."""

    def first_token(self, timing: Timing | None) -> None:
        """Nothing."""

    def used(
        self, outcome: str, *, prompt_tokens: int, cached_tokens: int, generated_tokens: int
    ) -> None:
        """Nothing."""


UNTRACED = Untraced()


class NoTracing:
    """Tracing that is off."""

    def begin(self, ask: Ask, route: str, arrived: float, link: TraceLink) -> Trace:  # noqa: ARG002
        """A trace that records nothing."""
        return UNTRACED
