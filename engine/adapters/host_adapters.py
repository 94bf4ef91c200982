"""Adapters in host memory, the least recently used forgotten first; read by one thread.

Of several ranks each has its part of the same adapters, and an adapter counts as read once all have
theirs.

Knows: digests, bytes. Does not know: requests, or which adapters are on the device.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from concurrent.futures import Future
from typing import Protocol

from engine.adapters.adapter_reader import AdapterReader
from engine.models.adapters.adapter import Adapter
from engine.models.adapters.errors import AdapterRefused


class OtherHosts(Protocol):
    """Host memory of the other ranks."""

    def hold(self, digest: bytes, path: str) -> bool:
        """Have all ranks read an adapter, if they have not; return whether they hold it.

        Raises AdapterRefused where one cannot read it; a later call has them read it again.
        """
        ...

    def forget(self, digest: bytes) -> None:
        """Have all ranks forget an adapter."""
        ...


class NoOtherHosts:
    """Stand-in for the other ranks of a single one; implements `OtherHosts`."""

    def hold(self, digest: bytes, path: str) -> bool:
        del digest, path
        return True

    def forget(self, digest: bytes) -> None:
        del digest


class HostAdapters:
    """Adapters of one engine in host memory. One owner thread; another one reads files."""

    def __init__(
        self, reader: AdapterReader, most_bytes: int, others: OtherHosts | None = None
    ) -> None:
        """Keep at most `most_bytes` of adapters on all ranks, and at least the last one."""
        self._reader = reader
        self._most_bytes = most_bytes
        self._others = others or NoOtherHosts()
        self._adapters = OrderedDict[bytes, Adapter]()  # by digest, the last used one last
        self._reading: dict[bytes, Future[Adapter]] = {}  # until all ranks hold them

    @property
    def num_bytes(self) -> int:
        """Bytes of all adapters in host memory."""
        return sum(one.num_bytes for one in self._adapters.values())

    @property
    def under_way(self) -> list[Future[Adapter]]:
        """The adapters of requests that are being read."""
        return [*self._reading.values()]

    def get(self, digest: bytes, path: str) -> Adapter | None:
        """Return an adapter, or None while it is read from `path`.

        Raises AdapterRefused where it cannot be; a later call reads it again.
        """
        if digest in self._adapters:
            self._adapters.move_to_end(digest)
            return self._adapters[digest]
        if digest not in self._reading:
            self._reading[digest] = self._reader.read(path, digest)
        try:
            is_held = self._others.hold(digest, path)
            if not (is_held and self._reading[digest].done()):
                return None
            adapter = self._reading.pop(digest).result()
        except AdapterRefused:
            self.forget(digest)
            raise
        self._keep(adapter)
        return adapter

    def read(self, path: str) -> Future[Adapter]:
        """Start to read the adapter at `path`, whatever its digest; raises within the future."""
        return self._reader.read(path)

    def take(self, reading: Future[Adapter], path: str) -> Adapter | None:
        """Return an adapter that was read from `path`, like `get`; None: not by all ranks yet."""
        digest = reading.result().digest
        if digest not in self._adapters:
            self._reading.setdefault(digest, reading)
        return self.get(digest, path)

    def forget_unwanted(self, wanted: Collection[bytes]) -> None:
        """Forget what was read for requests that have gone: only what is kept has a bound."""
        done = [digest for digest, reading in self._reading.items() if reading.done()]
        for digest in done:
            if digest not in wanted:
                self.forget(digest)

    def forget(self, digest: bytes) -> None:
        """Forget an adapter."""
        self._adapters.pop(digest, None)
        self._reading.pop(digest, None)
        self._others.forget(digest)

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()

    def _keep(self, adapter: Adapter) -> None:
        """Keep an adapter, and forget others while there are too many bytes."""
        self._adapters[adapter.digest] = adapter
        while len(self._adapters) > 1 and self.num_bytes > self._most_bytes:
            self.forget(next(iter(self._adapters)))
