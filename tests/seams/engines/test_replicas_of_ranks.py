"""One server with two replicas of two ranks each: both compute, and neither fetches blocks.

The model is tiny and untrained: answers are noise, but equal on every engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.doubles.processes import children
from tests.doubles.waiting import wait_for
from tests.seams.support.replica_load import body, states
from tests.seams.support.server import Server, running_server

SETTINGS = {
    "RATOON_REPLICAS": "2",
    "RATOON_TENSOR_PARALLEL": "2",
    "RATOON_CACHE_TOKENS": "8192",
    "RATOON_MAX_MODEL_LEN": "1024",
    "RATOON_HOST_CACHE_GIB": "0",
    "RATOON_DISK_CACHE_GIB": "0",
    "RATOON_NUM_THREADS": "1",
    "RATOON_LOAD_FORMAT": "dummy",
}
AT_ONCE = 8
LENGTH = 800  # tokens of a prompt, long enough that the next one goes to the other engine


def answers(server: Server, **more: object) -> list[list[str]]:
    """Send one prompt AT_ONCE times at the same time, and return the answers."""
    with server.client() as client, ThreadPoolExecutor(AT_ONCE) as pool:
        sent = [body(0, 20) | {"cache_salt": str(number)} | more for number in range(AT_ONCE)]
        asked = pool.map(lambda one: client.post("/v1/completions", json=one).json(), sent)
        return [one["choices"][0]["logprobs"]["tokens"] for one in asked]


def computed(server: Server) -> Sequence[int]:
    """Return the prompt tokens computed by each engine."""
    counted = [one["counted"] for one in server.stats()["replicas"]]
    return [one["windows"]["all"]["computed_tokens"] for one in counted]


def test_replicas_of_several_ranks_serve_alike(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny", config=RUNNABLE)
    with running_server(tmp_path / "data", SETTINGS | {"RATOON_MODEL": str(model)}) as server:
        wait_for(lambda: states(server) == {"0": "ready", "1": "ready"}, 60)
        assert [len(children(pid)) for pid in server.engines().values()] == [1, 1], "ranks"
        long = [32 + n % 90 for n in range(LENGTH)]
        first, *others = answers(server, prompt=long)
        assert others == [first] * (AT_ONCE - 1)
        assert min(computed(server)) > 0, "both have computed"
