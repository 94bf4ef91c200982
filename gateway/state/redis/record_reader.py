"""The reader of records in Redis, where anybody with its password may have written."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import msgspec

from gateway.errors import StateLost

T = TypeVar("T")

_LOG = logging.getLogger(__name__)


def read_record(record: bytes, kind: type[T]) -> T:
    """Read a record; raise StateLost for a record that no gateway wrote."""
    return read_by(lambda: msgspec.json.decode(record, type=kind), kind)


def read_by(read: Callable[[], T], kind: type) -> T:
    """Return the `kind` that `read` decodes; raise StateLost for data that no gateway wrote."""
    try:
        return read()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _LOG.error("what Redis holds as %s is damaged: %s", kind, error)
        raise StateLost("state_damaged") from error
