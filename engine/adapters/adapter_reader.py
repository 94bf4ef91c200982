"""The reader of adapters' files. A separate thread reads one adapter after the other."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from engine.models.adapters.adapter import Adapter, AdapterShapes, read_adapter
from engine.models.adapters.adapter_files import read_adapter_files
from engine.models.adapters.errors import AdapterRefused

HEADER_BYTES = 16 << 20  # maximum bytes of the header of a weight file
_NUMBER_BYTES = 4


class AdapterReader:
    """A reader of adapters for one model. Each of several ranks reads its part of an adapter."""

    def __init__(self, folder: Path, fits: AdapterShapes) -> None:
        """Read adapters in `folder`."""
        self._folder = folder
        self._fits = fits
        self._most_file = fits.most_numbers * _NUMBER_BYTES + HEADER_BYTES
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adapters")

    def read(self, path: str, digest: bytes | None = None) -> Future[Adapter]:
        """Start to read the adapter at `path`.

        The future raises AdapterRefused, also if `digest` is given and the files have another
        digest.
        """
        return self._thread.submit(self._read, path, digest)

    def close(self) -> None:
        """Stop reading."""
        self._thread.shutdown(cancel_futures=True)

    def _read(self, path: str, digest: bytes | None) -> Adapter:
        try:
            files = read_adapter_files(self._folder, path, self._most_file)
        except OSError as error:
            raise AdapterRefused(f"the folder of adapters: {error.strerror}") from error
        adapter = read_adapter(files, self._fits)
        if digest not in (None, adapter.digest):
            raise AdapterRefused("the adapter's files have changed since it was loaded")
        return adapter
