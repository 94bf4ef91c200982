"""The dry run's buckets use every kernel that any bucket uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def noted() -> dict[str, set[str]]:
    """Return the kernels of each set of buckets, computed by `noting` in a process without the
    interpreter.
    """
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.rigs.noting"],
        env=kept,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {name: set(kernels) for name, kernels in json.loads(done.stdout).items()}


def test_telling_buckets_ask_for_every_kernel_that_all_buckets_do(
    noted: dict[str, set[str]],
) -> None:
    assert noted["telling"] == noted["all"]
    assert len(noted["all"]) > 10


def test_telling_buckets_are_what_is_dry_run(noted: dict[str, set[str]]) -> None:
    assert noted["dry run"] == noted["telling"]


@pytest.mark.parametrize("missing", ["decodes alone", "new tokens", "sharing"])
def test_fewer_kinds_of_buckets_would_not_do(noted: dict[str, set[str]], missing: str) -> None:
    """Leave out one kind of bucket (positive control): each kind has kernels of its own."""
    assert noted[f"without {missing}"] < noted["all"]
