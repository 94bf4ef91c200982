"""The reader of records in Redis, where anybody with its password may have written."""

from __future__ import annotations

import logging
from typing import TypeVar

import msgspec

from gateway.errors import StateLost

T = TypeVar("T")

_LOG = logging.getLogger(__name__)


def read_record(record: bytes, kind: type[T]) -> T:
    """Read a record; raise StateLost for a record that no gateway wrote."""
    try:
        return msgspec.json.decode(record, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _LOG.error("what Redis holds as %s is damaged: %s", kind, error)
        raise StateLost("state_damaged") from error
