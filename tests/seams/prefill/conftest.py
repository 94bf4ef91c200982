"""Fixtures: a server with a tiny random Qwen3, shared by the tests of the folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import httpx
import pytest

from tests.doubles.waiting import wait_for
from tests.engine.rigs.checkpoints import Checkpoint
from tests.seams.support.server import Server, running_server
from tests.seams.support.small_qwen import write_small_qwen

MODEL = "model"
BLOCK = 16


def distinct_tokens(prompts: Iterable[list[int]]) -> int:
    """Count the tokens of prompts. A shared prefix counts once."""
    return len({tuple(one[:end]) for one in prompts for end in range(1, len(one) + 1)})


def computed_for(client: httpx.Client) -> int:
    """Return the number of prompt tokens computed for a tenant, once the usage is stored."""

    def rows() -> list[dict[str, int]]:
        found: list[dict[str, int]] = client.get("/v1/usage").raise_for_status().json()["usage"]
        return found

    wait_for(lambda: any(row["computed_tokens"] for row in rows()), 20.0)
    [row] = rows()
    return row["computed_tokens"]


@pytest.fixture(scope="session")
def small_qwen(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_small_qwen(tmp_path_factory.mktemp("small") / MODEL, embeds=False)


@pytest.fixture(scope="package")
def small_server(
    small_qwen: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    settings = {"RATOON_MODEL": str(small_qwen.model_dir)}
    with running_server(tmp_path_factory.mktemp("ratoon") / "data", settings) as running:
        yield running
