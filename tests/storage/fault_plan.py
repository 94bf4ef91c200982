"""Faults at the nth call of a function, and doubles whose calls fail so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from storage.copies import CopyDirection, CopyEvent, Copying, PlainCopies
from storage.disk.file.lmdb_file import Changes, LmdbFile, StoredRecord
from storage.errors import CopyFailed
from storage.runs import Runs


class FaultPlan:
    """A plan that raises `error` at call number `nth` of `name`, counted from 1; None: never."""

    def __init__(self, name: str, nth: int | None, error: Exception) -> None:
        self._name = name
        self._nth = nth
        self._error = error
        self.calls: Counter[str] = Counter()

    @property
    def has_struck(self) -> bool:
        """Return whether the nth call took place."""
        return self._nth is not None and self.calls[self._name] >= self._nth

    def call(self, name: str) -> None:
        """Count a call of `name`; raise the error if it is the nth."""
        self.calls[name] += 1
        if name == self._name and self.calls[name] == self._nth:
            raise self._error


class FaultyCopies(PlainCopies):
    """Copies that fail according to a plan."""

    def __init__(self, faults: FaultPlan) -> None:
        self._faults = faults

    def copy(self, direction: CopyDirection, runs: Runs, after: CopyEvent) -> Copying:
        """Raise an error before anything is copied, or copy."""
        self._faults.call("copy")
        return super().copy(direction, runs, after)


class _FaultyChanges(Changes):
    def __init__(self, changes: Changes, faults: FaultPlan) -> None:
        vars(self).update(vars(changes))
        self._faults = faults

    def put(self, slot: int, header: bytes, payload: bytes | bytearray | memoryview) -> None:
        self._faults.call("put")
        super().put(slot, header, payload)

    def delete(self, slot: int) -> None:
        self._faults.call("delete")
        super().delete(slot)


class FaultyFile(LmdbFile):
    """A real open file, some of whose calls fail according to a plan."""

    def __init__(self, file: LmdbFile, faults: FaultPlan) -> None:
        vars(self).update(vars(file))
        self._faults = faults

    @contextmanager
    def reading(self, slot: int) -> Iterator[StoredRecord | None]:
        """Raise an error, or read."""
        self._faults.call("get")
        with super().reading(slot) as kept:
            yield kept

    @contextmanager
    def changing(self) -> Iterator[_FaultyChanges]:
        """Make changes; if put, delete or commit fails, none of them takes place."""
        with super().changing() as changes:
            yield _FaultyChanges(changes, self._faults)
            self._faults.call("commit")


COPY_FAILED = CopyFailed("planned")
