"""Two gateway workers of `ratoon serve` with one engine serve like one gateway."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.waiting import wait_for
from tests.seams.support.server import Server, running_server

LIMIT_S = 60.0
CHAT = {"model": "handbook", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server with two workers, one of which a test may kill."""
    data_dir = tmp_path_factory.mktemp("workers") / "data"
    with running_server(data_dir, {"RATOON_WORKERS": "2"}) as running:
        yield running


def worker_pids(server: Server) -> set[int]:
    """Return the ids of the listening workers, which are children of the gateway's process."""
    parent = server.children()["gateway"]
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    listening = {inode for local, _, inode in tcp() if local == server_port(server)}
    return {int(child) for child in children if listening & socket_inodes(int(child))}


def server_port(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


def tcp() -> Iterator[tuple[int, int, int]]:
    """Return local port, remote port and inode of each IPv4 socket of this machine."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        local, remote = (int(fields[place].rpartition(":")[2], 16) for place in (1, 2))
        yield local, remote, int(fields[9])


def socket_inodes(pid: int) -> set[int]:
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def served_by(server: Server, connection: http.client.HTTPConnection) -> int:
    """Return the id of the worker at the other end of a connection on which a request was sent."""
    ours = connection.sock.getsockname()[1]
    its = {
        inode for local, remote, inode in tcp() if (local, remote) == (server_port(server), ours)
    }
    (pid,) = [pid for pid in worker_pids(server) if its & socket_inodes(pid)]
    return pid


def ask(
    connection: http.client.HTTPConnection, key: str, path: str, body: Any = None
) -> http.client.HTTPResponse:
    headers = {"Authorization": f"Bearer {key}"}
    content = None if body is None else json.dumps(body)
    connection.request("GET" if body is None else "POST", path, content, headers)
    return connection.getresponse()


def answered(connection: http.client.HTTPConnection, key: str, path: str, body: Any = None) -> Any:
    answer = ask(connection, key, path, body)
    content = answer.read()
    assert answer.status in (200, 201), content
    return json.loads(content)


def status(connection: http.client.HTTPConnection, key: str, path: str, body: Any = None) -> int:
    answer = ask(connection, key, path, body)
    answer.read()
    return answer.status


@contextmanager
def one_connection_each(server: Server) -> Iterator[dict[int, http.client.HTTPConnection]]:
    """Open connections until there is one to each worker."""
    wait_for(lambda: len(worker_pids(server)) == 2, LIMIT_S)
    workers = worker_pids(server)
    found: dict[int, http.client.HTTPConnection] = {}
    with ExitStack() as opened:
        for _ in range(200):
            connection = http.client.HTTPConnection("127.0.0.1", server_port(server), timeout=60)
            opened.callback(connection.close)
            assert status(connection, "", "/healthz") == 200
            found.setdefault(served_by(server, connection), connection)
            if found.keys() == workers:
                break
        assert found.keys() == workers
        yield found


def counted(connection: http.client.HTTPConnection, key: str) -> dict[str, float]:
    """Return the gateway's numbers in `/metrics`, without the engine's, which change meanwhile."""
    answer = ask(connection, key, "/metrics")
    text = answer.read().decode()
    assert answer.status == 200
    samples = re.findall(r"^(ratoon_(?!engine|pool|tree|prefix)\S+) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in samples}


def test_both_workers_serve_and_metrics_of_either_count_both(server: Server) -> None:
    with one_connection_each(server) as connections:
        one, other = connections.values()
        before = counted(one, server.admin_key)
        for connection in (one, one, one, other, other):
            said = answered(connection, server.demo_key, "/v1/chat/completions", CHAT)
            assert said["usage"]["completion_tokens"]
        after = counted(one, server.admin_key)
        assert counted(other, server.admin_key) == after
        name = "ratoon_request_seconds_count"
        label = '{route="/v1/chat/completions"}'
        assert after[name + label] - before.get(name + label, 0) == 5
        assert after["ratoon_requests_running"] == 0


def test_workers_share_the_engines_cache(server: Server) -> None:
    key = server.new_tenant()
    prompt = {**CHAT, "messages": [{"role": "user", "content": "shared " * 40}]}
    with one_connection_each(server) as connections:
        cold, hot = [
            answered(connection, key, "/v1/chat/completions", prompt)
            for connection in connections.values()
        ]
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert hot["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16


def test_each_worker_has_the_admin_routes_and_sees_the_others_changes(server: Server) -> None:
    admin = server.admin_key
    with one_connection_each(server) as connections:
        for connection in connections.values():
            assert status(connection, "", "/readyz") == 200
            assert answered(connection, admin, "/admin/cache/stats")["engine_id"]
        one, other = connections.values()
        tenant = answered(one, admin, "/admin/tenants", {"name": "of-one-worker"})
        named = answered(other, admin, "/admin/tenants")
        assert tenant["id"] in json.dumps(named)
        issued = answered(other, admin, f"/admin/tenants/{tenant['id']}/keys", {})
        for connection in connections.values():
            assert status(connection, issued["key"], "/v1/models") == 200


def test_a_page_shows_the_same_whichever_worker_answers(server: Server) -> None:
    admin = server.admin_key
    with one_connection_each(server) as connections:
        for connection in connections.values():
            for _ in range(2):
                assert status(connection, "sk-nobody", "/v1/models") == 401
        one, other = connections.values()
        refused = answered(one, admin, "/admin/refusals")
        assert refused["by_code"]["invalid_api_key"] >= 4
        assert answered(other, admin, "/admin/refusals") == refused
        for connection in connections.values():
            health = answered(connection, admin, "/admin/overview")["health"]
            shown = {entry["detail"] for entry in health if entry["process"] == "gateway"}
            assert shown == {f"worker {pid}" for pid in connections}


def test_percentiles_are_those_of_all_workers(server: Server) -> None:
    def samples(connection: http.client.HTTPConnection) -> list[Any]:
        told: list[Any] = answered(connection, server.admin_key, "/admin/overview")["samples"]
        return told

    def measured(connection: http.client.HTTPConnection) -> set[float]:
        return {one["t"] for one in samples(connection) if one["ttft_ms"]}

    with one_connection_each(server) as connections:
        one, other = both = tuple(connections.values())
        # rates are counted from each worker's first read on
        wait_for(lambda: all(map(samples, both)), LIMIT_S)
        known = measured(one) | measured(other)
        assert answered(one, server.demo_key, "/v1/chat/completions", CHAT)
        wait_for(lambda: all(measured(each) - known for each in both), LIMIT_S)


def test_a_key_that_one_revokes_is_dead_for_both_within_seconds(server: Server) -> None:
    admin = server.admin_key
    with one_connection_each(server) as connections:
        one, other = connections.values()
        tenant = answered(one, admin, "/admin/tenants", {"name": "to-be-revoked"})
        issued = answered(one, admin, f"/admin/tenants/{tenant['id']}/keys", {})
        for connection in connections.values():  # now both workers remember the key
            assert status(connection, issued["key"], "/v1/models") == 200
        path = f"/admin/tenants/{tenant['id']}/keys/{issued['record']['id']}"
        one.request("DELETE", path, headers={"Authorization": f"Bearer {admin}"})
        answer = one.getresponse()
        answer.read()
        assert answer.status == 200
        assert status(one, issued["key"], "/v1/models") == 401
        wait_for(lambda: status(other, issued["key"], "/v1/models") == 401, 10.0)


def test_the_death_of_one_takes_its_own_streams_alone(server: Server) -> None:
    long = {**CHAT, "max_tokens": 150, "ignore_eos": True, "stream": True, "drafts": False}
    with one_connection_each(server) as connections:
        (doomed, its), (spared, kept) = connections.items()
        before = counted(kept, server.admin_key)
        broken = ask(its, server.demo_key, "/v1/chat/completions", long)
        whole = ask(kept, server.demo_key, "/v1/chat/completions", long)
        for stream in (broken, whole):
            assert stream.readline().startswith(b"data: ")
        os.kill(doomed, signal.SIGKILL)
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            broken.read()
        told = whole.read()
        assert told.endswith(b"data: [DONE]\n\n")
        assert told.count(b"data: ") > 100
        after = counted(kept, server.admin_key)
        for name, value in before.items():
            assert name == "ratoon_requests_running" or after[name] >= value, name
        assert spared in worker_pids(server)
    with one_connection_each(server) as connections:
        assert spared in connections
        assert doomed not in connections
        for connection in connections.values():
            assert answered(connection, server.demo_key, "/v1/chat/completions", CHAT)
            assert counted(connection, server.admin_key)["ratoon_requests_running"] == 0
    wait_for(lambda: server.stats()["queue"] == {"running": 0, "waiting": 0}, LIMIT_S)
    wait_for(lambda: server.pool()["leased"] == 0, LIMIT_S)


def test_a_signal_lets_the_streams_of_both_end(server: Server) -> None:
    """This is the last test of the file, because it ends the server."""
    long = {**CHAT, "max_tokens": 100, "ignore_eos": True, "stream": True}
    with one_connection_each(server) as connections:
        streams = [
            ask(connection, server.demo_key, "/v1/chat/completions", long)
            for connection in connections.values()
        ]
        for stream in streams:
            assert stream.readline().startswith(b"data: ")
        server.process.send_signal(signal.SIGTERM)
        for stream in streams:
            assert stream.read().endswith(b"data: [DONE]\n\n")
        assert server.process.wait(LIMIT_S) == 0
