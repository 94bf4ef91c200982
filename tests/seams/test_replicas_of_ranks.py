"""Two replicas of two ranks each, in one start: requests are served, and a rank's death is one's.

The model is tiny and untrained: what a prompt gives is noise, the same from every engine.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.doubles.processes import children
from tests.doubles.waiting import wait_for
from tests.seams.support.replica_load import body, is_in, states
from tests.seams.support.server import Server, running_server

SETTINGS = {
    "RATOON_REPLICAS": "2",
    "RATOON_TENSOR_PARALLEL": "2",
    "RATOON_CACHE_TOKENS": "2048",
    "RATOON_MAX_MODEL_LEN": "512",
    "RATOON_HOST_CACHE_GIB": "0",
    "RATOON_DISK_CACHE_GIB": "0",
    "RATOON_NUM_THREADS": "1",
    "RATOON_LOAD_FORMAT": "dummy",
}
READY = {"0": "ready", "1": "ready"}


def answers(server: Server) -> list[list[str]]:
    with server.client() as client:
        asked = [client.post("/v1/completions", json=body(n, 20)).json() for n in range(4)]
    return [one["choices"][0]["logprobs"]["tokens"] for one in asked]


def test_replicas_of_several_ranks_serve_and_lose_a_rank(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny", config=RUNNABLE)
    with running_server(tmp_path / "data", SETTINGS | {"RATOON_MODEL": str(model)}) as server:
        wait_for(lambda: states(server) == READY, 60)
        right = answers(server)
        engines = server.engines()
        assert sorted(engines) == ["0", "1"]
        [rank] = children(engines["1"])
        os.kill(rank, signal.SIGKILL)
        wait_for(lambda: is_in(server, "1", "absent"), 20)
        assert answers(server) == right, "the other one serves"
        assert server.engines()["0"] == engines["0"]
