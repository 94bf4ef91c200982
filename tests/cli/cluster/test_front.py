"""`ratoon cluster up` starts its gateway with the cluster's settings, restarts a dead gateway, and
stops it at the command's own end.
"""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from cli.cluster.front import Look, check_gateway_ports, gateway_beside, gateway_settings
from cli.cluster.settings import ClusterSettings, read_settings
from cli.errors import BadSetting, ServingFailed
from cli.serving.link_key import link_key_file
from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.doubles.ports import free_port
from tests.doubles.processes import children
from tests.doubles.waiting import wait_for

START_S = 60.0


def read(directory: Path, text: str) -> ClusterSettings:
    path = directory / "cluster.yaml"
    path.write_text(text)
    return read_settings(path)


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def serves(look: Look, port: int) -> bool:
    look()
    return answers(port)


def fails(look: Look) -> bool:
    try:
        look()
    except ServingFailed:
        return True
    return False


def test_it_has_its_section_and_where_the_cluster_s_engines_are(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        "model: m\ndata_dir: /d\nredis_url: redis://r:6379/0\nlink_key_file: /k\nmax_running: 4\n"
        "gateway:\n  host: 0.0.0.0\n  port: 9000\n",
    )
    assert gateway_settings(settings) == {
        "model": "m",
        "data_dir": "/d",
        "link_key_file": "/k",
        "redis_url": "redis://r:6379/0",
        "find_engines": True,
        "host": "0.0.0.0",
        "port": 9000,
    }


@pytest.mark.parametrize("flag", ["port", "admin_port"])
def test_a_port_that_is_taken_is_named_before_anything_is_started(
    tmp_path: Path, flag: str
) -> None:
    port, others = free_port(), f"port: {free_port()}, " if flag != "port" else ""
    settings = read(tmp_path, f"gateway: {{{others}{flag}: {port}}}\n")
    check_gateway_ports(settings)
    check_gateway_ports(read(tmp_path, "engines: 1\n"))
    said = rf"^gateway\.{flag}: cannot listen on .*:{port}"
    with socket.create_server(("127.0.0.1", port)), pytest.raises(BadSetting, match=said):
        check_gateway_ports(settings)


def test_without_a_section_there_is_none(tmp_path: Path) -> None:
    before = children(os.getpid())
    with gateway_beside(read(tmp_path, "engines: 1\n")) as look:
        look()
        assert children(os.getpid()) == before


def test_it_runs_is_started_again_and_ends_with_the_command(tmp_path: Path) -> None:
    model, port = write_tiny_model(tmp_path / "tiny", config=RUNNABLE), free_port()
    section = f"gateway: {{port: {port}, workers: 1, page: false}}\n"
    settings = read(tmp_path, f"model: {model}\ndata_dir: {tmp_path}/data\n{section}")
    before = set(children(os.getpid()))
    (tmp_path / "data").mkdir(mode=0o700)
    link_key_file("tcp://any:1", None, tmp_path / "data", make=True)
    with gateway_beside(settings) as look:
        wait_for(lambda: answers(port), START_S)
        look()
        [pid] = set(children(os.getpid())) - before
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not answers(port), 10)
        wait_for(lambda: serves(look, port), START_S)
    assert set(children(os.getpid())) == before
    taken = replace(settings, gateway={"port": port, "admin_port": port})
    with gateway_beside(taken) as look:
        wait_for(lambda: fails(look), START_S)
