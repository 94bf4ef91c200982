"""With which status a node ends, so that who supervises it knows whether another start may do."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace as replaced
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from engine.process import EXIT_BROKEN, EXIT_CANNOT_START
from engine.ranks.nodes.__main__ import main
from engine.ranks.nodes.config import NodeConfig
from tests.engine.ranks.nodes.test_joining import config_of
from tests.engine.rigs.nodes import nodes_at


def status_of(config: NodeConfig) -> int:
    return main([msgspec.json.encode(config).decode()])


def test_what_is_wrong_with_its_settings_and_what_with_this_machine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at = nodes_at(tmp_path)
    assert status_of(config_of(replaced(at, key_file=tmp_path / "absent"))) == EXIT_CANNOT_START
    unknown = replace(config_of(at), join="tcp://[fe80::1%nosuch]:9")  # needs no DNS
    assert status_of(unknown) == EXIT_BROKEN
    assert "this node cannot serve: [Errno" in caplog.text


@pytest.mark.parametrize("arguments", [[], ["{}"], ["{}", "{}"]])
def test_without_a_config_it_says_how_it_is_called(
    arguments: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert main(arguments) == EXIT_CANNOT_START
    [line] = caplog.messages
    assert line.startswith("usage: python -m engine.ranks.nodes CONFIG, which is NodeConfig as")


def test_it_can_be_executed() -> None:
    """Elsewhere nodes are forked from a process that has imported what they need."""
    command = [sys.executable, "-m", "engine.ranks.nodes"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, "usage: " in ended.stderr) == (EXIT_CANNOT_START, True)
