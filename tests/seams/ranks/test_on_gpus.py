"""Two ranks or stages on two GPUs, over NCCL within graphs, give the text of one GPU."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.doubles.waiting import wait_for
from tests.seams.ranks.test_deaths import is_gone, rank_of
from tests.seams.support.server import Server, running_server

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

# float32, in which sums of two ranks move no token that is not a tie.
SETTINGS = {
    "RATOON_DEVICE": "cuda",
    "RATOON_DTYPE": "float32",
    "RATOON_CACHE_TOKENS": "65536",
    "RATOON_HOST_CACHE_TOKENS": "4096",
}
ASKED = 32
TOKENS = 320  # of each: in all more than 10,000 tokens of each rank


def completions(server: Server) -> list[dict[str, Any]]:
    """Many at once, twice: cold, and from the cache."""

    def ask(number: int) -> dict[str, Any]:
        prompt = [300 + (7 * i * (1 + number % 4)) % 90 for i in range(40 + number)]
        body = {"model": "handbook", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        with server.client() as client:
            answer = client.post("/v1/completions", json=body | {"ignore_eos": True})
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()["choices"][0]
        return found

    with ThreadPoolExecutor(ASKED) as threads:
        return [*threads.map(ask, range(ASKED)), *threads.map(ask, range(ASKED))]


def ask_alone(server: Server, number: int) -> str:
    """The text of a request that no other is beside, so that its steps are the same each time."""
    prompt = [300 + (7 * i * (1 + number)) % 90 for i in range(40 + number)]
    body = {"model": "handbook", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
    with server.client() as client:
        answer = client.post("/v1/completions", json=body | {"ignore_eos": True})
    answer.raise_for_status()
    found: str = answer.json()["choices"][0]["text"]
    return found


@pytest.mark.parametrize("divides", ["RATOON_TENSOR_PARALLEL", "RATOON_PIPELINE_PARALLEL"])
@pytest.mark.parametrize("settings", [{}, {"RATOON_GRAPH_TOKENS": "0"}], ids=["graphs", "eager"])
def test_the_text_of_one_gpu_also_after_a_death(
    tmp_path: Path, settings: Mapping[str, str], divides: str
) -> None:
    with running_server(tmp_path / "one", {**SETTINGS, **settings}) as server:
        expected = completions(server)
    two = {**SETTINGS, **settings, divides: "2"}
    with running_server(tmp_path / "two", two) as server:
        assert completions(server) == expected
        engine, rank = server.children()["engine"], rank_of(server)
        os.kill(rank, signal.SIGKILL)
        wait_for(lambda: is_gone(engine) and is_gone(rank), 30)
        server.wait_until_ready()
        assert completions(server) == expected


@pytest.mark.parametrize("settings", [{}, {"RATOON_GRAPH_TOKENS": "0"}], ids=["graphs", "eager"])
def test_peer_memory_gives_the_text_of_nccl(tmp_path: Path, settings: Mapping[str, str]) -> None:
    """In bfloat16, which alone is exchanged there; many texts of the model part at one bit."""
    two = {**SETTINGS, **settings, "RATOON_DTYPE": "bfloat16", "RATOON_TENSOR_PARALLEL": "2"}
    with running_server(tmp_path / "nccl", {**two, "RATOON_PEER_MEMORY": "0"}) as server:
        expected = [ask_alone(server, number) for number in range(8)]
    with running_server(tmp_path / "peers", two) as server:
        assert [ask_alone(server, number) for number in range(8)] == expected
        engine, rank = server.children()["engine"], rank_of(server)
        os.kill(rank, signal.SIGKILL)
        wait_for(lambda: is_gone(engine) and is_gone(rank), 30)
        server.wait_until_ready()
        assert ask_alone(server, 0), "whose start is read from the disk, so its rounding may differ"
    for name, is_alone in (("nccl", True), ("peers", False)):
        log = (tmp_path / f"{name}.log").read_text()
        assert "no peer memory" not in log
        assert ("ranks exchange over peer memory" not in log) == is_alone, "the control"
