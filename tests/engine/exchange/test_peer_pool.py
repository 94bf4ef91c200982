"""The pool of a GPU beside this one, as far as there need be no GPU."""

from __future__ import annotations

import torch

from engine.exchange.peer_pool import share, this_host


def test_a_pool_in_memory_is_not_shared() -> None:
    assert share(torch.zeros(4, 64, dtype=torch.uint8)) is None


def test_a_machine_has_one_name() -> None:
    assert this_host() == this_host() != b""
