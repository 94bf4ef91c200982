"""No text of prompts is left on disk or after a crash, and a deleted tenant's blocks are noise.

Prompts are whole blocks of token ids, so the test knows which bytes a record would contain.
"""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.seams.support.canaries import canary, files_of, finds, forms
from tests.seams.support.ratoon import printed_by
from tests.seams.support.server import Server, running_server

BLOCK = 16
TOKENS = 200


class Said:
    """A prompt of random token ids, and the byte strings that would reveal one of its blocks."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)
        self.token_ids = [dice.randrange(300, 2000) for _ in range(TOKENS)]
        whole = forms("", self.token_ids[BLOCK : 2 * BLOCK])
        self.forms = {name: form for name, form in whole.items() if name.startswith("token")}


def ask(server: Server, prompt: str | list[int], key: str | None = None) -> int:
    """Send a prompt, and return the number of cached prompt tokens."""
    body = {"model": "handbook", "prompt": prompt, "max_tokens": 1, "temperature": 0}
    with server.client(key) as client:
        answer = client.post("/v1/completions", json=body)
    answer.raise_for_status()
    cached: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


def memory_files(pid: int) -> dict[str, bytes]:
    """Return the contents of the memory files that a process has open."""
    found = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        if "memfd:" in os.readlink(link):
            found[f"{pid} {os.readlink(link)}"] = link.read_bytes()
    return found


def disk_process(server: Server) -> int:
    """Return the id of the disk tier's process, a child of the engine."""
    engine = server.children()["engine"]
    (pid,) = Path(f"/proc/{engine}/task/{engine}/children").read_text().split()
    return int(pid)


def blocks_on_disk(data_dir: Path) -> Mapping[str, bytes]:
    return {name: content for name, content in files_of(data_dir).items() if "state" not in name}


@pytest.fixture(params=[True, False], ids=["encrypted", "clear"], scope="module")
def encrypted(request: pytest.FixtureRequest) -> bool:
    is_encrypted: bool = request.param
    return is_encrypted


SETTINGS = {"RATOON_HOST_CACHE_TOKENS": "2048", "RATOON_DISK_CACHE_GIB": "0.25"}


def settings(*, encrypted: bool) -> dict[str, str]:
    return SETTINGS | {"RATOON_DISK_ENCRYPTION": "true" if encrypted else "false"}


@dataclass(frozen=True)
class Kept:
    """The logs, files and memory of one server, collected at its stop."""

    places: Mapping[str, bytes]  # files after the stop, and shared memory before the stop
    said: Said
    text: str
    core_limits: Mapping[str, tuple[int, int]]  # core dump limits of the server's processes


@pytest.fixture(scope="module")
def kept(encrypted: bool, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Run one server for all tests of its files."""
    data_dir = tmp_path_factory.mktemp("rest") / "data"
    said, text = Said(1), canary()
    own = settings(encrypted=encrypted)
    with running_server(data_dir, own) as server:
        for _ in range(2):  # sent twice, since blocks used only once are not written to disk
            ask(server, said.token_ids)
            ask(server, f"{text} " * 40)
        pids = {**server.children(), "disk": disk_process(server)}
        pids["supervisor"] = server.process.pid
        limits = {name: resource.prlimit(pid, resource.RLIMIT_CORE) for name, pid in pids.items()}
        shared = memory_files(pids["disk"])
        assert shared
    return Kept({**blocks_on_disk(data_dir), **shared}, said, text, limits)


def test_no_text_is_at_rest(kept: Kept) -> None:
    assert any(name.endswith("data.mdb") for name in kept.places)
    assert finds({"text": forms(kept.text)}, kept.places) == []


def test_token_ids_are_at_rest_without_encryption_alone(kept: Kept, encrypted: bool) -> None:
    """Only an unencrypted file contains token ids, as int32 in records."""
    found = finds({"ids": kept.said.forms}, kept.places)
    if encrypted:
        assert found == []
    else:
        assert {find.split(" in ")[0] for find in found} == {"ids (token ids, <i4)"}
        assert all(find.endswith("data.mdb") for find in found)


def test_no_process_dumps_its_memory_when_it_crashes(kept: Kept) -> None:
    assert set(kept.core_limits) == {"supervisor", "gateway", "engine", "disk"}
    for limits in kept.core_limits.values():
        assert limits in ((0, 0), (1, 1))


def test_a_deleted_tenant_s_blocks_are_noise_though_it_still_streams(tmp_path: Path) -> None:
    """A tenant is deleted during a stream: its key is erased on disk, and then the stream ends."""
    data_dir, said = tmp_path / "data", Said(2)
    with running_server(data_dir, settings(encrypted=True)) as server:
        key = server.new_tenant()
        for _ in range(2):
            ask(server, said.token_ids, key)
        with server.client(server.admin_key) as admin, server.client(key) as client:
            stats = admin.get("/admin/cache/stats").json()
            tenant = next(t["id"] for t in stats["tenants"] if t["blocks_held"] > 10)
            body = {"model": "handbook", "prompt": "x", "max_tokens": 4000, "ignore_eos": True}
            with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
                lines = answer.iter_lines()
                next(lines)
                assert admin.delete(f"/admin/tenants/{tenant}").json()["flushed_blocks"] > 10
                rest = "".join(lines)
                assert '"code":"invalid_api_key"' in rest
                assert "[DONE]" not in rest
            assert client.get("/v1/models").status_code == 401
            stats = admin.get("/admin/cache/stats").json()
            held = {t["id"]: t["blocks_held"] for t in stats["tenants"]}
            assert held[tenant] == 0
        for _ in range(2):
            ask(server, Said(3).token_ids)
        others = {t["id"] for t in server.stats()["tenants"]} - {tenant}
        there, file = ("--data-dir", str(data_dir)), str(tmp_path / "receipt.json")
        printed_by(["receipts", "create", tenant, file, *there], tmp_path / "created")
        key = printed_by(["receipts", "key", *there], tmp_path / "key").strip()
    verify = ["receipts", "verify", file, "--key", key]  # a command that needs no server
    shown = printed_by(verify, tmp_path / "verified")
    assert "Engine 0, disk: key destroyed." in shown
    assert "all is erased" in shown
    keys = [content for name, content in files_of(data_dir).items() if name.endswith("/keys")]
    assert keys
    assert not any(tenant.encode() in content for content in keys)
    assert any(other.encode() in content for other in others for content in keys), "the control"
