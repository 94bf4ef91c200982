"""The published prefixes in this gateway: read from the state, indexed and pinned.

    store --renewed on news, every REFRESH_S, and for a new engine--> tokens --> index (admission)
                                                                            `--> pins (engine)

The latest version of every name is published, unless it is deleted or an engine refuses to pin it.
While the store is unavailable, the known prefixes stay published.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import numpy as np

from engine.link.interface import Engine
from engine.link.messages import Welcome, pack_token_ids
from engine.link.query_messages import Pin
from gateway.errors import BadRequest, Unavailable
from gateway.processes.periodic import repeated
from gateway.sharing.namespaces import Namespaces, PublishedIndex
from gateway.sharing.pinning import Pinning
from gateway.state.records import PrefixSource, PublishedPrefix
from gateway.state.store import Records
from prefix_cache.hashing import TokenIds, block_keys
from prefix_cache.namespace import NamespacePath

REFRESH_S = 2.0
FILLING = 0  # the token id that fills the last block
LOOK_S = 0.25
_NONE: TokenIds = np.empty(0, np.int32)

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublishedParts:
    """The parts of the gateway that `Published` works with."""

    store: Records
    # raises BadRequest if the model refuses the source
    tokens_of: Callable[[PrefixSource], TokenIds]
    text_of: Callable[[TokenIds], str]
    namespaces: Namespaces
    index: PublishedIndex
    engine: Engine
    pool: Executor


class Published:
    """The published prefixes of one gateway process. Used in one event loop."""

    def __init__(self, parts: PublishedParts) -> None:
        self._parts = parts
        self._pinning = Pinning(parts.engine)
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()
        self._tokens: dict[str, TokenIds] = {}
        self._live: dict[str, PublishedPrefix] = {}
        self._unusable: dict[str, str] = {}
        self._in_force: tuple[object, ...] = ()  # inputs from which the present index was made

    def forget(self, changed_id: str) -> None:
        """Reload, since a published prefix may have changed."""
        del changed_id
        self.reload()

    def reload(self) -> None:
        """Read all published prefixes again, soon."""
        self._news.set()

    def refusal(self, prefix_id: str) -> str | None:
        """Return why a published prefix cannot be used or pinned, or None."""
        return self._unusable.get(prefix_id) or self._pinning.refusal(prefix_id)

    async def tokens_of(self, source: PrefixSource) -> TokenIds:
        """Tokenise a prefix's source; raise BadRequest if the model's template refuses it."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._parts.pool, self._parts.tokens_of, source)

    @property
    def namespaces(self) -> Namespaces:
        """The maker of namespaces. It knows the prefixes that are published now."""
        return self._parts.namespaces

    def record(self, prefix_id: str) -> PublishedPrefix | None:
        """Return the published prefix with this id; None if it is not published now."""
        return self._live.get(prefix_id)

    def text(self, prefix_id: str, start: int, end: int) -> str:
        """Decode the tokens [start, end) of a published prefix; "" if its tokens are not known."""
        return self._parts.text_of(self._tokens.get(prefix_id, _NONE)[start:end])

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Keep the index and the pins up to date while this context is open."""
        try:
            async with repeated(self._keep, "published"):
                yield
        finally:
            await self._pinning.close()

    async def renew(self) -> None:
        """Put the stored prefixes in force; raise Unavailable if the store does not answer.

        While there is no engine nothing changes, because the engine's block size is needed.
        """
        async with self._turn:
            welcome = self._parts.engine.welcome
            if welcome is None:
                return
            records = await self._parts.store.every(PublishedPrefix)
            live = [record for record in in_force(records) if await self._is_usable(record)]
            self._index(live, welcome)
            pinnable = [r for r in live if len(self._tokens[r.id]) >= welcome.block_size]
            scopes = {record.id: record.scope for record in pinnable}
            self._pinning.bring(
                welcome.engine_id,
                scopes.keys(),
                {record.id for record in records} - scopes.keys(),
                lambda prefix_id: self._pin(prefix_id, scopes[prefix_id], welcome),
            )

    async def _keep(self) -> None:
        engine_id = self._engine_id()
        self._news.clear()
        with suppress(Unavailable):
            await self.renew()
        await self._until_news(engine_id)

    async def _until_news(self, engine_id: str | None) -> None:
        for _ in range(round(REFRESH_S / LOOK_S)):
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._news.wait()
            if self._news.is_set() or self._engine_id() != engine_id:
                return

    def _engine_id(self) -> str | None:
        welcome = self._parts.engine.welcome
        return None if welcome is None else welcome.engine_id

    async def _is_usable(self, record: PublishedPrefix) -> bool:
        if record.id in self._tokens:
            return True
        if record.id in self._unusable:
            return False
        try:
            self._tokens[record.id] = await self.tokens_of(record.source)
        except BadRequest as error:
            self._unusable[record.id] = error.message
            _LOG.error("published prefix %s cannot be used: %s", record.id, error.message)
            return False
        return True

    def _index(self, live: Sequence[PublishedPrefix], welcome: Welcome) -> None:
        # An unpinned prefix is cached only after a request, so a hit would reveal the request.
        shared = [record for record in live if self._pinning.refusal(record.id) is None]
        ids = *(record.id for record in live), "shared", *(record.id for record in shared)
        made_of = (welcome.block_size, welcome.has_states, *ids)
        if made_of == self._in_force:
            return
        self._tokens = {record.id: self._tokens[record.id] for record in live}
        self._live = {record.id: record for record in live}
        entries = [(record.scope, self._tokens[record.id]) for record in shared]
        has_states = welcome.has_states
        self._parts.index.renew(welcome.block_size, entries, has_states=has_states)
        self._in_force = made_of

    def _pin(self, prefix_id: str, scope: str, welcome: Welcome) -> Pin:
        size = welcome.block_size
        whole = pinned_tokens(self._tokens[prefix_id], size, has_states=welcome.has_states)
        namespace = self._parts.namespaces.published(scope, welcome.fingerprint)
        return Pin(
            pin_id=prefix_id,
            token_ids=pack_token_ids(whole),
            namespace=namespace,
            block_keys=block_keys(NamespacePath.single(namespace), whole, size),
        )


def pinned_tokens(token_ids: TokenIds, block_size: int, *, has_states: bool = False) -> TokenIds:
    """Return the tokens of a prefix that are pinned: whole blocks.

    The last block is filled up with FILLING ids, so that a request can copy its leading, published
    part. The last block is left out if the model has recurrent states. Requests continue from the
    recurrent state at the end of the last whole published KV block. This state has to be pinned.
    """
    over = len(token_ids) % block_size
    if not over:
        return token_ids
    if has_states:
        return token_ids[:-over]
    return np.concatenate([token_ids, np.full(block_size - over, FILLING, np.int32)])


def in_force(records: Iterable[PublishedPrefix]) -> list[PublishedPrefix]:
    """Select the latest version of every prefix name, unless it is deleted."""
    latest: dict[str, PublishedPrefix] = {}
    for record in records:
        known = latest.get(record.name)
        if record.deleted_at is None and (known is None or record.version > known.version):
            latest[record.name] = record
    return list(latest.values())
