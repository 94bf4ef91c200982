"""The small process that `ratoon serve` becomes loads few modules and passes on no key.

It reads its orders from an unnamed file.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cli.supervision.address import ServerAddress, running_server
from cli.supervision.child import hub_tokens, python_environment
from cli.supervision.serving_state import Policy
from cli.supervision.supervise import Supervised

LIBRARIES = {"typer", "rich", "rich.console", "numpy", "fastapi", "zmq"}
LIMIT_S = 60
BECOME = """
import os, sys
import msgspec
from cli.supervision.supervise import Supervised, become_supervisor

print(os.getpid(), flush=True)
become_supervisor(msgspec.json.decode(sys.argv[1], type=Supervised))
"""


def loaded_with(module: str) -> set[str]:
    code = f"import {module}, sys; print(*sys.modules)"
    run = (sys.executable, "-c", code)
    return set(subprocess.check_output(run, text=True, timeout=LIMIT_S).split())


def test_it_loads_no_library_of_the_command_line() -> None:
    assert not LIBRARIES & loaded_with("cli.supervision.supervise")
    assert {"typer", "zmq"} <= loaded_with("cli.serving.serve"), "the control"


def test_a_child_that_cannot_start_ends_it_and_nothing_is_left(tmp_path: Path) -> None:
    """End the process if a child cannot start, which status 2 means if no child was ready
    before.
    """
    directory, data_dir = tmp_path / "sockets", tmp_path / "data"
    directory.mkdir()
    data_dir.mkdir()
    (directory / "engine.sock").touch()
    fails = [sys.executable, "-c", "import os; print('pid', os.getppid()); raise SystemExit(2)"]
    waits = [sys.executable, "-c", "import time; time.sleep(60)"]
    url = "http://127.0.0.1:1"
    supervised = Supervised(
        commands={"gateway": waits, "engine": fails},
        readiness_url=f"{url}/readyz",
        policy=Policy(),
        loading="loading nothing",
        greeting="hello",
        data_dir=str(data_dir),
        address=ServerAddress(url=url, admin_url=url, pid=1),
        directory=str(directory),
    )
    told = msgspec.json.encode(supervised).decode()
    ran = subprocess.run(
        [sys.executable, "-c", BECOME, told],
        env={**python_environment(), "RATOON_ADMIN_KEY": "x" * 16},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ran.returncode == 1
    pid = ran.stdout.split()[0]
    assert f"engine| pid {pid}\n" in ran.stderr, "it is the same process"
    assert "ratoon: loading nothing\n" in ran.stderr
    assert ran.stderr.endswith("the engine cannot start; its own words are above\n")
    assert not directory.exists()
    assert running_server(data_dir) is None
    assert not list(data_dir.iterdir())


def test_no_key_is_passed_on_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"RATOON_ADMIN_KEY", "RATOON_DEMO2_KEY", "RATOON_METRICS_KEY", "RATOON_KEY"}
    keys |= {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "OPENAI_API_KEY"}
    keys |= {"AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "PGPASSWORD"}
    keys |= {"RATOON_REDIS_PASSWORD", "CLIENT_SECRET", "DJANGO_SECRET_KEY", "github_token"}
    keys |= {"MYSQL_PWD", "SSHPASS", "DB_PASS", "SMTP_PASSWD", "GPG_PASSPHRASE", "DB_CREDENTIALS"}
    keys |= {"WANDB_KEY", "OPENAI_API_KEYS", "CI_JOB_JWT", "NPM_CONFIG__AUTH", "SESSION_COOKIE"}
    keys |= {"AZURE_STORAGE_CONNECTION_STRING", "VAULT_SECRETS", "MY_RATOON_KEY"}
    keys |= {"KEY", "GITHUB_PAT", "API_TOKENS", "SECRET_KEY_BASE", "TF_TOKEN_app_terraform_io"}
    keys |= {"SENTRY_DSN", "SYSTEM_ACCESSTOKEN", "DB_PASSWORD_RO", "AWS_CREDS", "API_KEY_1"}
    others = {"RATOON_LINK_KEY_FILE", "RATOON_PORT", "KEYMAP", "HF_HOME", "RATOON_SECRETS_DIR"}
    others |= {"PWD", "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY", "PGPASSFILE", "RATOON_COMPASS"}
    others |= {"AWS_SHARED_CREDENTIALS_FILE", "KEYBOARD", "LESSKEYIN", "AUTHOR", "PATH"}
    others |= {"HF_TOKEN_PATH", "TOKENIZERS_PARALLELISM", "RATOON_REDIS_PASSWORD_FILE"}
    others |= {"OTEL_EXPORTER_OTLP_HEADERS", "RATOON_MAX_MODEL_LEN", "RATOON_CACHE_TOKENS"}
    for name in keys | others:
        monkeypatch.setenv(name, "x")
    given = python_environment()
    assert others <= set(given)
    assert not keys & set(given)
    assert hub_tokens() == {"HF_TOKEN": "x", "HUGGING_FACE_HUB_TOKEN": "x"}
