"""What a node puts in place of rank 0's, and how it ends when it will never be let in."""

from __future__ import annotations

import threading
from dataclasses import replace as replaced
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.config import EngineConfig
from engine.link.tcp.curve import BadLinkKey, read_link_key
from engine.ranks.messages import Start
from engine.ranks.nodes.config import NodeConfig
from engine.ranks.nodes.joining import JoinRefused, check_own, localised, reached_by, serve
from engine.ranks.nodes.listener import open_listener
from engine.ranks.ring import ReaderEnds
from tests.doubles.waiting import wait_for
from tests.engine.rigs.nodes import NodesAt, nodes_at


def config_of(at: NodesAt, node_rank: int = 1) -> NodeConfig:
    return NodeConfig(
        join=at.place,
        node_rank=node_rank,
        host=None,
        key_file=str(at.key_file),
        model_dir="/there/model",
        disk_cache_dir="/there/blocks",
    )


def test_paths_and_the_address_are_its_own_and_all_else_is_the_engines(tmp_path: Path) -> None:
    at = nodes_at(tmp_path)
    engine = EngineConfig(
        model_dir="/here/model", socket="/s", disk_cache_dir="/here/blocks", max_running=7
    )
    start = Start(at.over(engine), 1, ReaderEnds(1, 2, 3, 4), "tcp://127.0.0.1:9", "127.0.0.1")
    own = localised(start, config_of(at), "127.0.0.2")
    assert own.host == "127.0.0.2"
    assert own.config == replace(
        start.config, model_dir="/there/model", disk_cache_dir="/there/blocks"
    )
    assert replace(own, config=start.config, host=start.host) == start


def test_it_is_asked_for_blocks_at_its_own_address_with_its_own_key(tmp_path: Path) -> None:
    """Where rank 0 is asked over TCP, and so has a key."""
    at = nodes_at(tmp_path)

    def of(
        exchange: str | None, key_file: str | None, host: str = "127.0.0.2"
    ) -> tuple[str | None, str | None]:
        engine = EngineConfig(model_dir="", socket="", exchange=exchange, link_key_file=key_file)
        start = Start(engine, 1, ReaderEnds(1, 2, 3, 4), "tcp://127.0.0.1:9", "127.0.0.1")
        own = localised(start, config_of(at), host).config
        return own.exchange, own.link_key_file

    assert of("tcp://10.0.0.1:7302", "/here/key") == ("tcp://127.0.0.2:7302", str(at.key_file))
    assert of("tcp://0.0.0.0:*", "/here/key") == ("tcp://127.0.0.2:*", str(at.key_file))
    in_brackets, _ = of("tcp://[fd00::1]:7302", "/here/key", "fd00::2")
    assert in_brackets == "tcp://[fd00::2]:7302"
    assert of("/run/engine.sock.x", None) == (None, None)
    assert of(None, None) == (None, None)


def test_its_address_is_the_one_from_which_the_other_is_reached() -> None:
    assert reached_by("tcp://127.0.0.1:9") == "127.0.0.1"
    assert reached_by("tcp://localhost:9") == "127.0.0.1"


def test_a_host_that_nobody_knows_is_named() -> None:
    with pytest.raises(OSError, match=r"join fe80::1%nosuch: ") as unknown:  # needs no DNS
        reached_by("tcp://[fe80::1%nosuch]:9")
    assert "\n" not in str(unknown.value)


def test_a_host_that_is_another_machines_is_named() -> None:
    """Not by gloo, in a traceback, once an engine has come, and then has to end."""
    check_own("127.0.0.2")
    with pytest.raises(OSError, match=r"node_host 203\.0\.113\.7: Cannot assign") as elsewhere:
        check_own("203.0.113.7")
    assert "\n" not in str(elsewhere.value)
    with pytest.raises(OSError, match=r"node_host fe80::1%nosuch: "):
        check_own("fe80::1%nosuch")


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_a_host_that_can_have_no_address_is_named(host: str) -> None:
    with pytest.raises(OSError, match=rf"node_host {host}: encoding") as own:
        check_own(host)
    with pytest.raises(OSError, match=rf"join {host}: encoding") as other:
        reached_by(f"tcp://{host}:7300")
    assert "\n" not in f"{own.value}{other.value}"


def test_one_that_there_is_not_ends(tmp_path: Path) -> None:
    at = nodes_at(tmp_path)
    key = read_link_key(at.key_file)
    ended: list[Exception] = []

    def run() -> None:
        try:
            serve(config_of(at, node_rank=5))
        except JoinRefused as error:
            ended.append(error)

    node = threading.Thread(target=run, daemon=True)
    node.start()
    with open_listener(at.place, key, 2, at.silence_s) as listener:
        wait_for(lambda: not listener.receive() and bool(ended), 20)
    assert str(ended[0]) == "there are 2 nodes, and none is number 5"


def test_without_a_key_it_does_not_begin(tmp_path: Path) -> None:
    at = replaced(nodes_at(tmp_path), key_file=tmp_path / "absent")
    with pytest.raises(BadLinkKey, match="cannot be read"):
        serve(config_of(at))
