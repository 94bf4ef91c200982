"""Servers of several ranks or stages on GPUs give the text of one GPU, and end if a rank dies.

`test_formats_on_gpus` tests ranks in every format, and each rank's samples.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.doubles.waiting import wait_for
from tests.seams.faults.test_engine_death import Stream
from tests.seams.ranks.test_deaths import children_of, expect_an_end, is_gone, rank_of
from tests.seams.support.server import Server, running_server

GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(GPUS < 2, reason="needs two GPUs"),
]

# float32, in which sums over two ranks change only tokens with nearly equal logits
SETTINGS = {
    "RATOON_DEVICE": "cuda",
    "RATOON_DTYPE": "float32",
    "RATOON_CACHE_TOKENS": "65536",
    "RATOON_HOST_CACHE_TOKENS": "4096",
}
ASKED = 32
TOKENS = 320  # number of tokens of each answer; each rank samples more than 10,000 tokens


def completions(server: Server) -> list[dict[str, Any]]:
    """Complete many prompts at once, first without and then with the cache."""

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
    """Return the text of a request that runs alone, so that its steps are always the same."""
    prompt = [300 + (7 * i * (1 + number)) % 90 for i in range(40 + number)]
    body = {"model": "handbook", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
    with server.client() as client:
        answer = client.post("/v1/completions", json=body | {"ignore_eos": True})
    answer.raise_for_status()
    found: str = answer.json()["choices"][0]["text"]
    return found


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_killed_rank_ends_the_engine_and_its_streams(tmp_path: Path, num_ranks: int) -> None:
    """The kernels of all other ranks poll for the killed rank's rows. The next engine answers."""
    if num_ranks > GPUS:
        pytest.skip(f"needs {num_ranks} GPUs")
    divided = {"RATOON_DTYPE": "bfloat16", "RATOON_TENSOR_PARALLEL": str(num_ranks)}
    with running_server(tmp_path / "data", SETTINGS | divided, is_executed=True) as server:
        assert ask_alone(server, 0)
        engine = server.children()["engine"]
        ranks = children_of(engine, "engine.follower")
        assert len(ranks) == num_ranks - 1
        stream = Stream(server)
        stream.start()
        wait_for(lambda: server.stats()["queue"]["running"] == 1, 30)
        began = time.monotonic()
        os.kill(ranks[-1], signal.SIGKILL)
        expect_an_end(stream)
        wait_for(lambda: all(map(is_gone, (engine, *ranks))), 30)
        gone_s = time.monotonic() - began
        wait_for(lambda: server.children().get("engine", engine) != engine, 30)
        server.wait_until_ready()
        assert ask_alone(server, 0)
    print(f"\n{num_ranks} ranks, one killed: all gone after {gone_s:.1f} s")  # noqa: T201
    assert "ranks exchange over peer memory" in (tmp_path / "data.log").read_text()


def test_stages_in_fp8_give_the_text_of_one_gpu(tmp_path: Path) -> None:
    """Requests run alone, so that each request's steps always have the same rows.

    Then stages compute the same bits as one GPU.
    """
    fp8 = SETTINGS | {"RATOON_DTYPE": "bfloat16", "RATOON_QUANTIZATION": "fp8"}
    texts = []
    for name, settings in (("one", fp8), ("two", fp8 | {"RATOON_PIPELINE_PARALLEL": "2"})):
        with running_server(tmp_path / name, settings, is_executed=True) as server:
            texts.append([ask_alone(server, number) for number in range(4)])
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1, "the control: they differ from each other"


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
    """The model runs in bfloat16, where a difference of one bit would change many texts."""
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
