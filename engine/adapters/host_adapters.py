"""The adapters in host memory, of which the least recently used is forgotten first.

With several ranks, each rank holds one part of every adapter. An adapter counts as read when all
ranks hold their parts.
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
    """An interface to the host memory of the other ranks."""

    def hold(self, digest: bytes, path: str) -> bool:
        """Make all ranks read an adapter, unless this was ordered before.

        Return whether all ranks hold the adapter. If a rank could not read it, raises
        AdapterRefused until the adapter is forgotten.
        """
        ...

    def forget(self, digest: bytes) -> None:
        """Make all ranks forget an adapter."""
        ...


class NoOtherHosts:
    """A stand-in for other ranks if the engine has only one rank. Implements `OtherHosts`."""

    def hold(self, digest: bytes, path: str) -> bool:
        del digest, path
        return True

    def forget(self, digest: bytes) -> None:
        del digest


class HostAdapters:
    """The adapters of one engine in host memory.

    An owner thread uses the adapters, and another thread reads files.
    """

    def __init__(
        self, reader: AdapterReader, most_bytes: int, others: OtherHosts | None = None
    ) -> None:
        """Keep up to `most_bytes` of adapters, summed over all ranks, or one larger adapter."""
        self._reader = reader
        self._most_bytes = most_bytes
        self._others = others or NoOtherHosts()
        # adapters by digest; the least recently used comes first
        self._adapters = OrderedDict[bytes, Adapter]()
        self._reading: dict[bytes, Future[Adapter]] = {}

    @property
    def num_bytes(self) -> int:
        """The number of bytes of all adapters in host memory."""
        return sum(one.num_bytes for one in self._adapters.values())

    @property
    def digests(self) -> Collection[bytes]:
        """The digests of the adapters that are in host memory or being read."""
        return self._adapters.keys() | self._reading.keys()

    @property
    def under_way(self) -> list[Future[Adapter]]:
        """The adapters that are being read for requests."""
        return [*self._reading.values()]

    def get(self, digest: bytes, path: str) -> Adapter | None:
        """Return an adapter, or None while it is being read from `path`.

        Raises AdapterRefused if the adapter cannot be read. A later call tries again.
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
        """Start to read the adapter at `path`, whatever its digest.

        An error while reading is raised by the future.
        """
        return self._reader.read(path)

    def take(self, reading: Future[Adapter], path: str) -> Adapter | None:
        """Return the adapter that `reading` has read, or None until all ranks have read it."""
        digest = reading.result().digest
        if digest not in self._adapters:
            self._reading.setdefault(digest, reading)
        return self.get(digest, path)

    def forget_unwanted(self, wanted: Collection[bytes]) -> None:
        """Forget adapters that were read for requests that have since ended.

        `most_bytes` does not bound these adapters.
        """
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
        """Keep an adapter, and forget other adapters until at most `most_bytes` are kept."""
        self._adapters[adapter.digest] = adapter
        while len(self._adapters) > 1 and self.num_bytes > self._most_bytes:
            self.forget(next(iter(self._adapters)))
