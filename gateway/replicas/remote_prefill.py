"""A remote prefill: an engine computes a request's prompt for the engine that answers it.

    remote   sent --computes, commits blocks, sends them to the other engine--> over; its token is
                                                                                dropped
    attempt  sent --fetches ... ---------------------------------> the last token, begun, answers

However a remote prefill ends, the answering engine computes the KV blocks that have not arrived. No
error of the prefill therefore reaches the client. The prefill ends with its request at the latest.
Only the answering engine counts the prompt as looked up.

Blocks that the prefill computes are fetched, but were not cached. `own_reuse` subtracts them.

Elsewhere: how the engine was chosen (`gateway.routing.remote_prefill`).
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import TypeVar

from msgspec.structs import replace

from engine.errors import EngineError, EngineUnavailable
from engine.link.event_messages import Failed, Finished, Reused, Tokens
from engine.link.messages import FetchSource, Generate, SamplingParams
from gateway.replicas.members import ReplicaEngine
from gateway.routing.prompt import TOKEN_BYTES
from gateway.routing.remote_prefill import prefill_id

# A prefill samples one token, which is dropped, because the answering engine computes the last
# position itself.
_PROMPT_ALONE = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
_LOG = logging.getLogger(__name__)

End = TypeVar("End", Finished, Failed, Finished | Failed)
OnBegin = Callable[[Tokens], None]


class RemotePrefill:
    """A remote prefill. Used in one event loop."""

    def __init__(self, replica: str, request: Generate, source: FetchSource | None) -> None:
        """Prepare a remote prefill. The computing engine first fetches from `source`."""
        self.replica = replica
        self.request = replace(
            request,
            request_id=prefill_id(request.request_id),
            sampling=_PROMPT_ALONE,
            writer="",
            source=source,
            is_counted=False,
        )
        self.error: EngineError | None = None
        self.says_it_stops = False
        # seconds spent by the computing engine, known once the prefill is over
        self._engine_seconds = 0.0
        # number of tokens computed by that engine, known once the prefill is over
        self._computed = 0
        self._reused: Reused | None = None
        self._running: asyncio.Task[None] | None = None

    def source(self, address: str) -> FetchSource:
        """Return the exchange of the computing engine, from which the answering engine fetches."""
        num_tokens = len(self.request.token_ids) // TOKEN_BYTES
        return FetchSource(address, num_tokens, self.request.request_id)

    def start(self, engine: ReplicaEngine, on_begin: OnBegin, on_over: Callable[[], None]) -> None:
        """Begin the prefill. Call `on_over` once, however the prefill ends."""
        self._running = asyncio.create_task(self._run(engine, on_begin), name="remote-prefill")
        self._running.add_done_callback(lambda task: _over(task, on_over))

    @property
    def is_over(self) -> bool:
        """True if the computing engine has ended the prefill, or is gone."""
        return self._running is None or self._running.done()

    def stop(self) -> None:
        """Cancel the prefill in the computing engine if it still runs."""
        if self._running is not None:
            self._running.cancel()

    async def over(self) -> None:
        """Wait until the prefill is over."""
        if self._running is not None:
            await asyncio.wait([self._running])

    def own_end(self, end: End) -> End:
        """Return the answering engine's last message, with the tokens that both engines computed.

        Before the first token, perhaps only the computing engine has computed tokens. The counts of
        that engine are used then. Tokens of a prefill that was not awaited count for nobody.
        """
        before = end.reused or Reused()
        reused = self.own_reuse(before)
        computed = end.computed_tokens + before.tokens - reused.tokens
        if not end.completion_tokens and self._computed > computed:
            reused, computed = self._reused or Reused(), self._computed
        end = replace(end, reused=reused, computed_tokens=computed)
        if isinstance(end, Failed):
            return end
        return replace(end, engine_seconds=end.engine_seconds + self._engine_seconds)

    def own_reuse(self, reused: Reused) -> Reused:
        """Count as fetched only the tokens that the computing engine had cached before."""
        if not reused.fetched:
            return reused
        there = self._reused or Reused()
        cached = reused.tiers.total
        fetched = min(max(there.tokens - cached, 0), reused.fetched)
        saved = reused.saved_seconds
        if saved is not None and reused.tokens:
            saved *= (cached + fetched) / reused.tokens
        pairs = zip(reused.written, there.written, strict=False)
        written = tuple(map(max, pairs)) if there.written else reused.written
        return replace(reused, fetched=fetched, saved_seconds=saved, written=written)

    async def _run(self, engine: ReplicaEngine, on_begin: OnBegin) -> None:
        try:
            async with aclosing(engine.generate(self.request, self._ended)) as events:
                async for event in events:
                    if isinstance(event, Tokens) and event.reused is not None:
                        self._reused = event.reused
                        on_begin(event)
        except EngineError as error:
            self.error = error

    def _ended(self, end: Finished | Failed) -> None:
        self._reused, self._computed = end.reused or self._reused, end.computed_tokens
        if isinstance(end, Finished):
            self._engine_seconds = end.engine_seconds
        else:
            self.says_it_stops = end.code == EngineUnavailable.code


def _over(task: asyncio.Task[None], on_over: Callable[[], None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.error("a prompt for another engine failed", exc_info=error)
    on_over()
