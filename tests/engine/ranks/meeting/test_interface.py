"""NCCL is told the interface of the operator's address, unless the operator has named one."""

from __future__ import annotations

import os

import pytest

from engine.ranks.meeting.interface import NCCL_INTERFACE, interface_of, keep_nccl_on


def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None
    assert interface_of("::1") is None


def test_what_the_operator_has_named_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NCCL_INTERFACE, "eth7")
    keep_nccl_on("127.0.0.1")
    assert environment() == "eth7"
    monkeypatch.delenv(NCCL_INTERFACE)
    keep_nccl_on("192.0.2.1")
    assert environment() is None
    keep_nccl_on("127.0.0.1")
    assert environment() == "=lo"


def environment() -> str | None:
    return os.environ.get(NCCL_INTERFACE)
