"""The rooms that a start rehearses ask for every kernel that all rooms together do."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def noted() -> dict[str, set[str]]:
    """What sets of rooms ask for (`noting`), in a process in which kernels are not interpreted."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.rigs.noting"],
        env=kept,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {name: set(kernels) for name, kernels in json.loads(done.stdout).items()}


def test_telling_rooms_ask_for_every_kernel_that_all_rooms_do(noted: dict[str, set[str]]) -> None:
    assert noted["telling"] == noted["all"]
    assert len(noted["all"]) > 10


def test_telling_rooms_are_what_is_rehearsed(noted: dict[str, set[str]]) -> None:
    assert noted["rehearsal"] == noted["telling"]


@pytest.mark.parametrize("missing", ["decodes alone", "new tokens", "sharing"])
def test_fewer_kinds_of_rooms_would_not_do(noted: dict[str, set[str]], missing: str) -> None:
    """The control: rooms of each kind ask for kernels of their own."""
    assert noted[f"without {missing}"] < noted["all"]
