"""The record of a run, and what a run over a restart must remember in between.

Knows: what is recorded. Does not know: how it is shown (`report`).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from cli.errors import BadSetting
from cli.isolation.findings import Finding, Outcome
from cli.isolation.paired import Seed
from cli.isolation.server_facts import ServerFacts
from cli.isolation.timing import Timing
from gateway.private_file import PrivateFileError, read_private, replace_private


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run, without keys or prompts."""

    began: str  # UTC
    ended: str
    server: ServerFacts
    tool_version: str
    tiers: list[str]  # that were asked for
    findings: list[Finding]
    timing: Timing | None
    timing_outcome: Outcome | None
    verdict: Outcome


class Halfway(msgspec.Struct, frozen=True, kw_only=True):
    """A run that waits for a restart. It has keys and prompts, so its file is private."""

    began: str
    mark: str
    server: ServerFacts
    tiers: list[str]
    groups: list[str]
    findings: list[Finding]
    timing: Timing | None
    seeds: list[Seed]
    each_entry: bool


def write_halfway(path: Path, halfway: Halfway) -> None:
    """Keep `halfway` for the second part, readable by nobody else."""
    replace_private(path, msgspec.json.encode(halfway))


def read_halfway(path: Path) -> Halfway | None:
    """What the first part kept; None when there was none. BadSetting for anything else."""
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(read_private(path), type=Halfway)
    except (PrivateFileError, msgspec.DecodeError, OSError) as error:
        raise BadSetting("--after-restart", str(error)) from error


def forget_halfway(path: Path) -> None:
    """Remove what the first part kept."""
    path.unlink(missing_ok=True)
