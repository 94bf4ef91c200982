import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.child import python_environment
from cli.options import ModelFlags, SocketFlags
from cli.standalone import meeting_place
from engine.config import EngineConfig

ECHO = "import os, sys; print(os.getpid(), sys.argv[1])"
BECOME = """
import os
from cli.standalone import become
from engine.config import EngineConfig

print(os.getpid(), flush=True)
become("echo_config", EngineConfig(model_dir="m", socket="s"))
"""


def test_the_socket_lies_in_the_data_directory_by_default(tmp_path: Path) -> None:
    model = ModelFlags(data_dir=tmp_path)
    assert meeting_place(model, SocketFlags()) == tmp_path / "engine.sock"
    assert meeting_place(model, SocketFlags(Path("/run/x.sock"))) == Path("/run/x.sock")


def test_gateway_and_engine_agree_on_where_from_wherever_they_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = meeting_place(ModelFlags(data_dir=Path("data")), SocketFlags())
    assert place == tmp_path / "data" / "engine.sock"


def test_the_process_becomes_the_module_with_its_config(tmp_path: Path) -> None:
    (tmp_path / "echo_config.py").write_text(ECHO)
    env = python_environment()
    env["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    printed = subprocess.run(
        [sys.executable, "-c", BECOME], env=env, capture_output=True, text=True, timeout=60
    ).stdout
    before, after = printed.splitlines()
    pid, config = after.split(" ", 1)
    assert pid == before, "it is the same process"
    assert EngineConfig(model_dir="m", socket="s").model_dir in config
    assert '"socket":"s"' in config
