"""`ratoon serve`, restarted: a prefix is found on disk, or computed again."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx

from tests.doubles.waiting import wait_for
from tests.seams.support.server import Server, running_server

PROMPT = "The harbour master keeps the ledger of every ship that ties up at the quay. " * 20


def ask(server: Server) -> tuple[str, dict[str, Any]]:
    """Return the text that follows PROMPT, and the usage."""
    with server.client() as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        answer = client.post(
            "/v1/completions",
            # the operator's key, since usage shows tiers only to operators
            headers={"X-Ratoon-Operator": server.admin_key},
            json={
                "model": model,
                "prompt": PROMPT,
                "max_tokens": 8,
                "temperature": 0,
                "ignore_eos": True,
            },
        )
    answer.raise_for_status()
    found = answer.json()
    return found["choices"][0]["text"], found["usage"]["prompt_tokens_details"]


def kill(server: Server) -> None:
    """Kill supervisor, gateway and engine at once, and wait until they are gone."""
    pids = [server.process.pid, *server.children().values()]
    for pid in pids:
        # the process may have ended already, after its parent's end
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    server.process.wait(10)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids[1:]), 10)


def test_a_stop_keeps_what_a_kill_does_not_spoil_and_another_model_never_finds(
    tmp_path: Path,
) -> None:
    model = tmp_path / "model"
    shutil.copytree(str(files("handbook") / "model"), model)
    settings = {"RATOON_MODEL": str(model)}
    with running_server(tmp_path / "data", settings) as server:
        cold, details = ask(server)
        assert details["cached_tokens"] == 0
        warm, details = ask(server)
        assert details["ratoon"]["device"] == details["cached_tokens"] > 200
        assert warm == cold
    with running_server(tmp_path / "data", settings) as server:
        again, details = ask(server)
        assert again == cold
        assert details["cached_tokens"] > 200, "from disk, or loaded before it was asked"
        disk = server.stats()["tiers"]["disk"]
        assert disk["state"] == "up"
        assert disk["records"] > 0
        kill(server)
    with running_server(tmp_path / "data", settings) as server:
        again, _ = ask(server)
        assert again == cold
        twice, details = ask(server)
        assert twice == cold
        assert details["cached_tokens"] > 200
    weights = model / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    with running_server(tmp_path / "data", settings) as server:
        assert ask(server)[1]["cached_tokens"] == 0
        assert ask(server)[1]["cached_tokens"] > 200, "its own"


def test_a_second_engine_on_the_same_disk_does_without(server: Server, tmp_path: Path) -> None:
    blocks = {"RATOON_DISK_CACHE_DIR": str(server.data_dir / "blocks")}
    with running_server(tmp_path / "two", blocks) as two:
        first, second = ask(server), ask(two)
        assert first[0] == second[0]
        assert server.stats()["tiers"]["disk"]["state"] == "up"
        assert two.stats()["tiers"]["disk"] is None
        assert httpx.get(f"{two.url}/readyz").status_code == 200
