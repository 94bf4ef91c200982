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

ROOT = Path(__file__).parents[4]


def without(name: str, directory: Path) -> Path:
    """What is installed here but for one package, and what says that it is installed."""
    directory.mkdir()
    for one in Path(msgspec.__file__).parents[1].iterdir():
        if one.name != name and not one.name.startswith(f"{name}-"):
            (directory / one.name).symlink_to(one)
    return directory


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
    caplog.clear()
    assert status_of(replace(config_of(at), host="203.0.113.7")) == EXIT_BROKEN
    assert "node_host 203.0.113.7: Cannot assign" in caplog.text


@pytest.mark.parametrize("hidden", ["torch", "nothing"])
def test_without_torch_it_says_what_to_install(tmp_path: Path, hidden: str) -> None:
    """Not once an engine is there: what is missing here does not come by waiting."""
    packages = without(hidden, tmp_path / "packages")
    config = config_of(nodes_at(tmp_path))
    command = [
        sys.executable,
        "-S",
        "-m",
        "engine.ranks.nodes",
        msgspec.json.encode(config).decode(),
    ]
    environment = {"PYTHONPATH": f"{ROOT}:{packages}"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as node:
        assert node.stderr is not None
        try:
            said = node.stderr.readline()
            if hidden == "nothing":
                assert "waiting for an engine" in said, "the control"
                return
            assert said.endswith("torch is not installed; install the version of the engine's\n")
            assert node.stderr.read() == ""
            assert node.wait(30) == EXIT_CANNOT_START
        finally:
            node.kill()


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
