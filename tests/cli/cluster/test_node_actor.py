"""What Ray runs on a further machine of an engine, without Ray: it follows the engine about."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from cli.cluster.actor import composed
from cli.cluster.node_actor import EngineAt, EngineNode, Pace
from cli.cluster.settings import ClusterSettings, read_settings
from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.doubles.waiting import wait_for
from tests.engine.rigs.nodes import new_key_file

START_S = 60.0
HERE, ELSEWHERE = "tcp://127.0.0.1:23100", "tcp://127.0.0.1:23200"


@pytest.fixture
def settings(tmp_path: Path) -> ClusterSettings:
    model = write_tiny_model(tmp_path / "tiny", config=RUNNABLE)
    (tmp_path / "cluster.yaml").write_text(
        f"model: {model}\npipeline_parallel: 2\nnnodes: 2\nload_format: dummy\n"
        f"redis_url: redis://r:6379\nlink_key_file: {new_key_file(tmp_path)}\n"
        f"data_dir: {tmp_path / 'data'}"
    )
    return read_settings(tmp_path / "cluster.yaml")


def test_it_comes_to_where_the_engine_is_and_comes_again(settings: ClusterSettings) -> None:
    """Also when its process has ended. While nobody knows where the engine is, it stays."""
    at: list[str | None] = [None]
    node = EngineNode(
        msgspec.json.encode(settings), 0, 1, "127.0.0.2", lambda: at[0], Pace(0.1, 0.1)
    )
    assert node.pid == 0
    at[0] = HERE
    wait_for(lambda: joins(node.pid) == "tcp://127.0.0.1:23104", START_S)
    first = node.pid
    os.kill(first, 9)
    wait_for(lambda: node.pid not in (0, first), START_S)
    second, at[0] = node.pid, None
    wait_for(lambda: joins(second) == "tcp://127.0.0.1:23104", START_S)
    at[0] = ELSEWHERE
    wait_for(lambda: joins(node.pid) == "tcp://127.0.0.1:23204", START_S)
    assert joins(second) == ""
    os.kill(node.pid, 9)
    at[0] = None


def test_whatever_is_wrong_with_its_thread_ends_the_actor(
    settings: ClusterSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray says nothing of a thread that is over, and starts an actor again that has ended."""
    ended: list[str] = []

    def lost() -> str | None:
        raise ConnectionError("no answer from Ray")

    def begin(name: str, engine_at: EngineAt) -> None:
        def end(status: int) -> None:
            ended.append(f"{name} {status}")

        given, pace = msgspec.json.encode(settings), Pace(0.01, 0.01)
        EngineNode(given, 0, 1, "127.0.0.2", engine_at, pace, end)

    begin("control", lambda: None)
    begin("broken", lost)
    wait_for(lambda: bool(ended), START_S)
    assert ended == ["broken 1"]
    assert "no answer from Ray" in capsys.readouterr().err


def joins(pid: int) -> str:
    """Where a node's process comes to; "" where there is none."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except FileNotFoundError:
        return ""
    config = next((word for word in words if word.startswith("{")), "{}")
    found: str = msgspec.json.decode(config).get("join", "")
    return found


def test_both_machines_agree_on_the_place_the_key_and_the_disks(settings: ClusterSettings) -> None:
    engine = composed(settings, 3, HERE)
    node = EngineNode(msgspec.json.encode(settings), 3, 1, "127.0.0.2", lambda: None).config(HERE)
    assert (engine.node_address, engine.node_key_file) == (node.join, node.key_file)
    assert engine.disk_cache_dir == node.disk_cache_dir
    assert node.disk_cache_dir is not None
    assert node.disk_cache_dir.endswith("blocks-3")
    alone = replace(settings, engine=replace(settings.engine, nnodes=1, pipeline_parallel=1))
    assert composed(alone, 3, HERE).node_address is None
