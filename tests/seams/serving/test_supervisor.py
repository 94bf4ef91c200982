"""The process that supervises the others keeps no key or secret, and dumps no core."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import zmq

from cli.serving.link_key import LINK_KEY_NAME
from gateway.auth.secrets import load_secrets
from gateway.startup.first_start import KEYS_FILE, read_keys
from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.doubles.processes import memory_of
from tests.seams.support.canaries import finds, forms
from tests.seams.support.server import Server, running_server

GIVEN = f"the-key-of-an-environment-{secrets.token_hex(16)}"
# a key from another keys.env, which the shell has put into the environment
OTHER = f"sk-{secrets.token_urlsafe(32)}"
HUB = f"hf_{secrets.token_urlsafe(25)}"


@dataclass(frozen=True)
class Serving:
    """A server, and all forms of its secrets, by name."""

    server: Server
    secret: Mapping[str, Mapping[str, bytes]]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Run a server with the operator's key in its environment. The server makes the other keys."""
    directory = tmp_path_factory.mktemp("supervised")
    data_dir = directory / "data"
    data_dir.mkdir(mode=0o700)
    link_key = zmq.curve_keypair()[1].decode()
    (data_dir / LINK_KEY_NAME).touch(mode=0o600)
    (data_dir / LINK_KEY_NAME).write_text(f"{link_key}\n")
    settings = {
        "RATOON_MODEL": str(write_tiny_model(directory / "tiny", config=RUNNABLE)),
        "RATOON_LOAD_FORMAT": "dummy",
        "RATOON_FIND_ENGINES": "true",
        "RATOON_DISK_CACHE_GIB": "0",
        "RATOON_DEMO_KEY": OTHER,
        "HF_TOKEN": HUB,
        "RATOON_ADMIN_KEY": GIVEN,
    }
    with running_server(data_dir, settings, is_executed=True) as server:
        kept = load_secrets(data_dir)
        texts = {
            **read_keys(data_dir / KEYS_FILE),
            "link.key": link_key,
            "another's": OTHER,
            "hub": HUB,
        }
        secret = {name: forms(text) for name, text in texts.items()}
        for name in ("pepper", "server_secret"):
            plain: bytes = getattr(kept, name)
            secret[name] = {"plain": plain, "hexadecimal": plain.hex().encode()}
        assert len(secret) == 9
        assert GIVEN in texts.values()
        yield Serving(server, secret)


def test_no_key_and_no_secret_is_in_its_memory(serving: Serving) -> None:
    assert finds(serving.secret, memory_of(serving.server.process.pid)) == []


def test_the_control_is_a_process_that_holds_one(serving: Serving) -> None:
    gateway = memory_of(serving.server.children()["gateway"])
    assert finds({"pepper": {"plain": serving.secret["pepper"]["plain"]}}, gateway)
    key = serving.server.admin_key
    with subprocess.Popen(["sleep", "60"], env={"RATOON_ADMIN_KEY": key}) as holder:
        held = finds(serving.secret, memory_of(holder.pid))
        holder.kill()
    assert {found.split(" in ")[0] for found in held} == {"RATOON_ADMIN_KEY (plain)"}


def test_none_is_in_the_environment_or_the_arguments_of_any_process(serving: Serving) -> None:
    pids = {"supervisor": serving.server.process.pid, **serving.server.children()}
    places = {
        f"{name} {file}": Path(f"/proc/{pid}/{file}").read_bytes()
        for name, pid in pids.items()
        for file in ("environ", "cmdline")
    }
    assert all(places.values())
    assert set(pids) == {"supervisor", "gateway", "engine"}
    assert finds(serving.secret, places) == []
