"""The running requests by their API keys. A request whose key becomes invalid is cut off.

A running request is cut off if a new request with its key would be refused now. Both requests get
the same error. The reason may be a revoked or expired key, or a disabled or deleted tenant. Each
key with running requests is checked once a second, however many requests it has. The keyring
remembers a key for IDENTITY_TTL_S. If this gateway is told of the change, the request ends at most
CHECK_EVERY_S later. Otherwise the request may run IDENTITY_TTL_S longer. While the state does
not answer, requests continue for as long as new requests are admitted (`keyring.OUTAGE_TTL_S`). A
spent budget ends no request, since the maximum cost of a request was reserved when the request
began.

A request is also cut off if its tenant has left its group. The blocks that the request computes may
be shared with that group. Therefore no gateway runs such a request longer than GROUP_KNOWN_S after
the change.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import chain

from gateway.auth.keyring import IDENTITY_TTL_S, Keyring
from gateway.errors import GatewayError, Unavailable
from gateway.http.request_head import RunningRequest
from gateway.processes.periodic import repeated

CHECK_EVERY_S = 1.0
GROUP_KNOWN_S = IDENTITY_TTL_S + 2 * CHECK_EVERY_S
_AT_ONCE = 16  # keys checked at once; with more keys, new requests would wait longer for the store

_LOG = logging.getLogger(__name__)


class RunningRequests:
    """The running requests of one gateway process. Used in one event loop."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._by_key: dict[bytes, set[RunningRequest]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def __iter__(self) -> Iterator[RunningRequest]:
        return chain.from_iterable(list(self._by_key.values()))

    def add(self, digest: bytes, request: RunningRequest) -> None:
        """Register `request` under its key's digest until the request is over."""
        self._by_key.setdefault(digest, set()).add(request)
        request.at_end.callback(self._remove, digest, request)

    @asynccontextmanager
    async def checked(self) -> AsyncIterator[None]:
        """Check the keys of running requests regularly while this context is open."""
        async with repeated(self._check_later, "running-requests"):
            yield

    async def check(self) -> None:
        """Cut off each running request whose key would be refused now."""
        digests = list(self._by_key)
        for start in range(0, len(digests), _AT_ONCE):
            some = digests[start : start + _AT_ONCE]
            outcomes = await asyncio.gather(*map(self._check, some), return_exceptions=True)
            for failure in filter(None, outcomes):
                _LOG.error("a key cannot be checked: %r", failure)

    async def _check_later(self) -> None:
        await asyncio.sleep(CHECK_EVERY_S)
        await self.check()

    async def _check(self, digest: bytes) -> None:
        try:
            caller = await self._keyring.check(digest)
        except GatewayError as error:
            self._cut_off(list(self._by_key.get(digest, ())), error)
            return
        requests = self._by_key.get(digest, ())
        if ended := [one for one in requests if one.group_id not in (None, caller.group_id)]:
            self._cut_off(ended, _group_left())

    def _cut_off(self, ended: list[RunningRequest], error: GatewayError) -> None:
        _LOG.info("cutting off %d requests of one key: %s", len(ended), error.code)
        for request in ended:
            request.cut_off(error)

    def _remove(self, digest: bytes, request: RunningRequest) -> None:
        requests = self._by_key.get(digest, set())
        requests.discard(request)
        if not requests:
            self._by_key.pop(digest, None)


def _group_left() -> Unavailable:
    return Unavailable(
        "the tenant has left its group: send the request again",
        code="group_left",
        retry_after_s=CHECK_EVERY_S,
    )
