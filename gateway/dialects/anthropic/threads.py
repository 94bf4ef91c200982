"""The threads of tenants: conversations that the server stores between a client's turns.

A turn is stored under its answer's id until a request continues the turn, for an hour at most. A
request that continues a turn first stores a claim. Only one request can claim a turn. Once the
request has stored its own turn, the continued turn is removed. If the request fails, the claim is
removed, so the client may try again.

Elsewhere: what a turn holds (`thread_turns.py`).
"""

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

import msgspec
from msgspec import Raw, Struct

from gateway.caller import Caller
from gateway.dialects.anthropic.rendering import MessageRendering
from gateway.dialects.anthropic.schema import ContinuedThread, Thread
from gateway.dialects.anthropic.thread_turns import HeldTurn, answer_of
from gateway.dialects.dialect_request import BYTES_PER_CHARACTER
from gateway.dialects.finished_choice import FinishedChoice
from gateway.dialects.stored_records import StoredRecords
from gateway.errors import BadRequest, Conflict, GatewayError, NotFound
from gateway.http.body_memory import BodyLease
from gateway.processes.fair_executor import Steps
from gateway.processes.tenant_turns import seen_out
from gateway.prompts.pipeline.admission import Admission
from gateway.requests.request_usage import Usage

_LONGEST_S = 3600.0
_CLAIM = "after_"  # a claim's id is this prefix and the id of the continued message
_PREVIOUS = "thread.previous_message_id"
_REPLAY = 'send the whole conversation with `thread: {"type": "create"}`'
_LOG = logging.getLogger(__name__)


class _SpelledTurn(Struct, frozen=True, kw_only=True):
    asked: Raw
    answer: list[object]


_TURN = msgspec.json.Decoder(HeldTurn)


@dataclass(frozen=True, slots=True)
class Threads:
    """Stores and finds the message threads (stored conversations) of all tenants."""

    records: StoredRecords

    @property
    def seconds(self) -> float:
        """The time in seconds for which a turn is stored; 0 if turns are not stored."""
        return min(_LONGEST_S, self.records.bounds.response_ttl_s)

    async def before(
        self, thread: Thread | None, tenant_id: str, body: BodyLease
    ) -> HeldTurn | None:
        """Find the turn that a request continues; return None for a new conversation.

        The memory counted for `body` grows by the turn's bytes. Raises NotFound if the tenant has
        no such turn. Raises BadRequest if threads are not stored here, or if another request has
        continued the turn.
        """
        if thread is not None and not self.seconds:
            raise unsupported("this server stores no conversations")
        if not isinstance(thread, ContinuedThread):
            return None
        previous_id = thread.previous_message_id
        if not previous_id.startswith("msg_"):
            raise _missing()
        try:
            found = await self.records.find(tenant_id, previous_id, body)
        except NotFound:
            is_claimed = await self._holds(tenant_id, _CLAIM + previous_id)
            raise (_continued() if is_claimed else _missing()) from None
        return _TURN.decode(found.content)

    def check_size(self, asked: bytes) -> None:
        """Raise BadRequest if a conversation is too large to store."""
        most = self.records.bounds.max_response_bytes
        if len(asked) > most:
            raise unsupported(f"the conversation has more than {most} bytes")

    async def claim(self, tenant_id: str, previous_id: str) -> None:
        """Claim a turn for one request; raise BadRequest for a claimed turn or a full store."""
        now = self.records.clock()
        try:
            kept = await self.records.keep(tenant_id, _CLAIM + previous_id, b"{}", now, _LONGEST_S)
        except Conflict:
            is_held = await self._holds(tenant_id, previous_id)
            raise (_in_flight() if is_held else _continued()) from None
        if kept is None:
            raise unsupported("this server has no room for conversations")

    async def keep(self, tenant_id: str, message_id: str, content: bytes) -> None:
        """Store a turn. If the store has no room, log that the turn cannot be continued."""
        now = self.records.clock()
        kept = await self.records.keep(tenant_id, message_id, content, now, self.seconds)
        if kept is None:
            _LOG.info("a thread's turn is not stored: it has %d bytes", len(content))

    async def forget(self, tenant_id: str, message_id: str) -> None:
        """Remove a continued turn."""
        with suppress(NotFound):
            await self.records.drop(tenant_id, message_id)

    async def release(self, tenant_id: str, previous_id: str) -> None:
        """Remove a claim."""
        await self.forget(tenant_id, _CLAIM + previous_id)

    async def _holds(self, tenant_id: str, record_id: str) -> bool:
        return record_id in await self.records.store.response_ids(
            tenant_id, record_id, now=self.records.clock()
        )


@dataclass(slots=True)
class ThreadTurn:
    """A thread's turn while it is answered. `asked` is the JSON of its `HeldConversation`."""

    threads: Threads
    thread: Thread
    caller: Caller
    admission: Admission
    rendering: MessageRendering
    asked: bytes
    has_claim: bool = False

    @property
    def _previous_id(self) -> str | None:
        thread = self.thread
        return thread.previous_message_id if isinstance(thread, ContinuedThread) else None

    @asynccontextmanager
    async def claimed(self) -> AsyncIterator[None]:
        """Claim the turn that this turn continues. Release the claim if the answer fails."""
        previous_id, tenant_id = self._previous_id, self.caller.tenant_id
        if previous_id is None:
            yield
            return
        try:
            await seen_out(self._claim(tenant_id, previous_id))
            yield
        finally:
            if self.has_claim:
                with _logged("a claim of a thread is not removed"):
                    await seen_out(self.threads.release(tenant_id, previous_id))

    async def keep(self, choices: Sequence[FinishedChoice], usage: Usage) -> None:
        """Store this turn, and remove the turn that it continues."""
        del usage
        work = sum(choice.work for choice in choices) + len(self.asked) // BYTES_PER_CHARACTER
        content = await self.admission.spell(self.caller, self._content(choices), work)
        with _logged("a thread's turn is not stored"):
            await seen_out(self._store(content))

    async def _claim(self, tenant_id: str, previous_id: str) -> None:
        await self.threads.claim(tenant_id, previous_id)
        self.has_claim = True

    async def _store(self, content: bytes) -> None:
        tenant_id, previous_id = self.caller.tenant_id, self._previous_id
        await self.threads.keep(tenant_id, self.rendering.message_id, content)
        # the claim stays in the store, to show that the turn has been continued
        self.has_claim = False
        if previous_id is not None:
            await self.threads.forget(tenant_id, previous_id)

    def _content(self, choices: Sequence[FinishedChoice]) -> Steps[bytes]:
        yield from ()
        heard = self.rendering.heard
        pieces = choices[0].pieces if choices or heard is None else heard.finished()
        answer = answer_of(pieces, self.rendering.request_id)
        return msgspec.json.encode(_SpelledTurn(asked=Raw(self.asked), answer=[*answer]))


@contextmanager
def _logged(failure: str) -> Iterator[None]:
    """Log an error of the store. The answer is sent in spite of the error."""
    try:
        yield
    except GatewayError as error:
        _LOG.warning("%s: %s", failure, error.code)


def unsupported(why: str) -> BadRequest:
    """Make the error that causes clients to send the whole conversation without `thread`."""
    return BadRequest(
        f"{why}: send all messages, without `thread`",
        code="thread_unsupported_request",
        param="thread",
    )


def _missing() -> NotFound:
    return NotFound(
        f"there is no such message to continue; {_REPLAY}",
        code="thread_not_found",
        param=_PREVIOUS,
    )


def _continued() -> BadRequest:
    return BadRequest(
        f"this message was continued already; continue the one that followed, or {_REPLAY}",
        code="thread_already_continued",
        param=_PREVIOUS,
    )


def _in_flight() -> BadRequest:
    return BadRequest(
        f"another request is continuing this message; wait for its answer, or {_REPLAY}",
        code="thread_continue_in_flight",
        param=_PREVIOUS,
    )
