"""`ratoon serve` from the command line: real gateway, real engine, a tiny random model."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from cli.supervision.address import ADDRESS_FILE, running_server
from cli.supervision.child import python_environment
from gateway.startup.first_start import DEMO2_KEY, DEMO_KEY, read_keys
from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.doubles.ports import free_port

SERVE = "from cli.main import main; main()"


@dataclass
class Serving:
    """A running `ratoon serve`, with stdout and stderr in one stream of lines."""

    process: subprocess.Popen[str]
    url: str
    data_dir: Path

    def read_until(self, words: str) -> str:
        """Return the next line that contains `words`."""
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            said.append(line)
            if words in line:
                return line
        raise AssertionError(f"{words!r} was never said:\n{''.join(said)}")

    def ask(self, body: str, key_name: str = DEMO_KEY) -> dict[str, Any]:
        """Post a chat; return the decoded answer."""
        key = read_keys(self.data_dir / "keys.env")[key_name]
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        answer = httpx.post(
            f"{self.url}/v1/chat/completions", content=body, headers=headers, timeout=60
        )
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    model = write_tiny_model(tmp_path / "tiny", config=RUNNABLE)
    port, data_dir = free_port(), tmp_path / "data"
    words = f"serve --model {model} --data-dir {data_dir} --port {port} --load-format dummy"
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, *words.split(), "--cache-tokens=4096", "--device=cpu"],
        env={**python_environment(), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Serving(process, f"http://127.0.0.1:{port}", data_dir)
    finally:
        process.kill()
        process.communicate()


def _nothing_of_ours(environment: dict[str, str]) -> dict[str, str]:
    """Remove the environment variables by which `make` sets a data directory and a port."""
    return {name: value for name, value in environment.items() if "RATOON" not in name}


def typed(*words: str, said: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in its own process, with `variables` in its environment."""
    return subprocess.run(
        [sys.executable, "-c", SERVE, *words],
        env={**_nothing_of_ours(python_environment()), **variables},
        input=said,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_from_the_greeting_to_the_last_signal(serving: Serving) -> None:
    bodies = [
        re.sub(r"^  -d '|'\n$", "", serving.read_until("  -d '{")).replace("'\"'\"'", "'")
        for _ in range(2)
    ]
    assert cached(serving.ask(bodies[0])) == 0
    assert cached(serving.ask(bodies[1])) >= 256, "the system prompt's blocks"
    assert cached(serving.ask(bodies[1], DEMO2_KEY)) == 0, "another tenant's"

    status = typed("status", "--json", DATA_DIR=str(serving.data_dir))
    assert status.returncode == 0, status.stderr
    assert msgspec.json.decode(status.stdout)["url"] == serving.url, "nobody named the port"
    told = typed("chat", DATA_DIR=str(serving.data_dir), said="Hello\n")
    assert re.search(r"\[cached \d+ of \d+ prompt tokens, ", told.stderr), told.stderr

    serving.process.send_signal(signal.SIGTERM)
    assert serving.process.wait(30) == 0
    assert running_server(serving.data_dir) is None
    assert not (serving.data_dir / ADDRESS_FILE).exists()
