"""Adapters in host memory, the least recently used forgotten first; read by one thread.

Knows: files, digests, bytes. Does not know: requests, or which adapters are on the device.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from engine.models.adapters.adapter import Adapter, AdapterShapes, read_adapter
from engine.models.adapters.adapter_files import read_adapter_files
from engine.models.adapters.errors import AdapterRefused

HEADER_BYTES = 16 << 20  # bound on the header of a file of weights
_NUMBER_BYTES = 4  # bytes of a float32, the widest type


class HostAdapters:
    """Adapters of one engine in host memory. One owner thread; another one reads files."""

    def __init__(self, folder: Path, fits: AdapterShapes, most_bytes: int) -> None:
        """Keep at most `most_bytes` of adapters from below `folder`, and at least the last one."""
        self._folder = folder
        self._fits = fits
        self._most_bytes = most_bytes
        self._adapters = OrderedDict[bytes, Adapter]()  # by digest, the last used one last
        self._reading: dict[bytes, Future[Adapter]] = {}
        numbers = sum(rows + size_in for rows, size_in in fits.shapes.values()) * fits.most_rank
        self._most_file = numbers * _NUMBER_BYTES + HEADER_BYTES
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="adapters")

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
        reading = self._reading.get(digest)
        if reading is None:
            self._reading[digest] = self._reader.submit(self._read, path, digest)
            return None
        if not reading.done():
            return None
        del self._reading[digest]
        adapter = reading.result()
        self.keep(adapter)
        return adapter

    def read(self, path: str) -> Future[Adapter]:
        """Start to read the adapter at `path`, whatever its digest; raises within the future."""
        return self._reader.submit(self._read, path, None)

    def keep(self, adapter: Adapter) -> None:
        """Keep an adapter that was read, and forget others while there are too many bytes."""
        self._adapters[adapter.digest] = adapter
        self._adapters.move_to_end(adapter.digest)
        while len(self._adapters) > 1 and self.num_bytes > self._most_bytes:
            self._adapters.popitem(last=False)

    def forget(self, digest: bytes) -> None:
        """Forget an adapter."""
        self._adapters.pop(digest, None)

    def close(self) -> None:
        """Stop reading."""
        self._reader.shutdown(cancel_futures=True)

    def _read(self, path: str, digest: bytes | None) -> Adapter:
        try:
            files = read_adapter_files(self._folder, path, self._most_file)
        except OSError as error:
            raise AdapterRefused(f"the folder of adapters: {error.strerror}") from error
        adapter = read_adapter(files, self._fits)
        if digest not in (None, adapter.digest):
            raise AdapterRefused("the adapter's files have changed since it was loaded")
        return adapter
