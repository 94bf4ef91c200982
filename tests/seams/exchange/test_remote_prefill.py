"""Three engines of one server: one computes long prompts, and two generate answers.

The model is tiny and untrained: answers are noise, but equal on every engine.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.cli.console import Console
from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.doubles.waiting import wait_for
from tests.seams.support.server import Server, running_server

SETTINGS = {
    "RATOON_REPLICAS": "3",
    "RATOON_PREFILL_REPLICAS": "1",
    "RATOON_CACHE_TOKENS": "16384",
    "RATOON_MAX_MODEL_LEN": "2048",
    "RATOON_HOST_CACHE_TOKENS": "0",
    "RATOON_DISK_CACHE_GIB": "0",
    "RATOON_CACHE_SHARING": "pooled",
    "RATOON_NUM_THREADS": "1",
    "RATOON_LOAD_FORMAT": "dummy",
}
# a model so slow that fetching is faster than computing on any machine
SLOW = RUNNABLE | {"num_hidden_layers": 6}
PROMPTS = 4
LENGTH = 900
HERD = 24
TOKENS = 12
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("roles")
    model = write_tiny_model(directory / "tiny", config=SLOW)
    with running_server(directory / "data", SETTINGS | {"RATOON_MODEL": str(model)}) as server:
        wait_for(lambda: set(states(server).values()) == {"ready"}, WITHIN_S)
        yield server


def replicas(server: Server) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = httpx.get(server.url + "/readyz").json()["replicas"]
    return found


def states(server: Server) -> dict[str, str]:
    return {name: one["state"] for name, one in replicas(server).items()}


def ask(server: Server, key: str, number: int, *, own: Sequence[int] = ()) -> tuple[list[str], int]:
    """Return the tokens of an answer, and the number of cached prompt tokens."""
    begin = [65 + number] * 20 + [32 + n % 90 for n in range(LENGTH - 20)]
    body = {
        "model": "tiny", "prompt": [*begin, *own],
        "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "logprobs": 0,
    }  # fmt: skip
    with server.client(key) as client:
        answer = client.post("/v1/completions", json=body)
    answer.raise_for_status()
    said = answer.json()
    cached = said["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return said["choices"][0]["logprobs"]["tokens"], cached


def all_answers(server: Server, key: str) -> list[tuple[list[str], int]]:
    with ThreadPoolExecutor(PROMPTS) as pool:
        return list(pool.map(lambda number: ask(server, key, number), range(PROMPTS)))


def metric(server: Server, name: str) -> float:
    with server.client(server.admin_key) as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def remote_prefills(server: Server) -> float:
    return metric(server, 'ratoon_fetches_chosen_total{reason="prompt"}')


def computed(server: Server) -> dict[str, int]:
    """Return the prompt tokens computed by each engine."""
    return {
        one["name"]: one["counted"]["windows"]["all"]["computed_tokens"]
        for one in server.stats()["replicas"]
        if one["counted"] is not None
    }


def looked_up(server: Server) -> dict[str, int]:
    """Return the prompt tokens looked up by all engines together."""
    window: dict[str, int] = server.stats()["windows"]["all"]
    return {name: window[name] for name in ("queried_tokens", "hit_tokens", "fetched_tokens")}


def used(server: Server, key: str) -> dict[str, int]:
    with server.client(key) as client:
        days = client.get("/v1/usage").json()["usage"]
    names = ("requests", "computed_tokens", "cached_tokens", "generated_tokens")
    return {name: sum(day[name] for day in days) for name in names}


def published_state(server: Server) -> list[str]:
    with server.client(server.admin_key) as client:
        return [one["state"] for one in client.get("/admin/prefixes").json()["prefixes"]]


def pinned_in(server: Server, name: str) -> int:
    """Return the number of tokens whose blocks an engine has pinned on its device."""
    for one in server.stats()["replicas"]:
        if one["name"] == name and one["counted"] is not None:
            return int(one["counted"]["pool"]["tokens"]["leased"])
    return 0


def test_prompts_are_computed_on_one_engine_and_answered_on_the_others(fleet: Server) -> None:
    roles = {name: one.get("role") for name, one in replicas(fleet).items()}
    assert roles == {"0": "prefill", "1": "decode", "2": "decode"}
    key, before, looked = fleet.new_tenant(), computed(fleet), looked_up(fleet)
    answers = all_answers(fleet, key)
    once = {name: count - looked[name] for name, count in looked_up(fleet).items()}
    assert once["queried_tokens"] == PROMPTS * LENGTH, "not by both engines of a prompt"
    assert once["hit_tokens"] < PROMPTS * LENGTH / 10 < once["fetched_tokens"]
    assert remote_prefills(fleet) >= PROMPTS - 1, "the control: they were computed there"
    done = {name: count - before[name] for name, count in computed(fleet).items()}
    assert done["0"] > (PROMPTS - 1) * LENGTH / 2
    assert done["1"] + done["2"] < PROMPTS * LENGTH / 2
    assert sum(cached for _, cached in answers) < PROMPTS * LENGTH / 10, "they count as computed"
    wait_for(lambda: used(fleet, key)["requests"] == PROMPTS, 20)
    charged = used(fleet, key)
    assert charged["generated_tokens"] == PROMPTS * TOKENS
    assert charged["computed_tokens"] + charged["cached_tokens"] == PROMPTS * LENGTH
    assert charged["cached_tokens"] == sum(cached for _, cached in answers)

    prefills = remote_prefills(fleet)
    again = all_answers(fleet, key)
    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in answers]
    assert all(cached > 0.9 * LENGTH for _, cached in again), "where they were answered"
    assert remote_prefills(fleet) == prefills, "what is cached there is not computed elsewhere"

    shown = Console().type("status", "--url", fleet.url, "--admin-key", fleet.admin_key)
    assert "prefill: " in shown.out


def test_without_the_computing_engine_the_others_do_it_and_answer_the_same(fleet: Server) -> None:
    right = all_answers(fleet, fleet.new_tenant())
    with ThreadPoolExecutor(2 * PROMPTS) as pool:
        keys = [fleet.new_tenant() for _ in range(3)]
        running = [pool.submit(ask, fleet, key, n) for key in keys for n in range(PROMPTS)]
        os.kill(fleet.engines()["0"], signal.SIGKILL)
        late = [one.result() for one in running]
    assert [tokens for tokens, _ in late] == 3 * [tokens for tokens, _ in right]
    for key in keys:
        wait_for(lambda key=key: used(fleet, key)["requests"] == PROMPTS, 20)  # type: ignore[misc]
        assert used(fleet, key)["generated_tokens"] == PROMPTS * TOKENS
    wait_for(lambda: set(states(fleet).values()) == {"ready"}, WITHIN_S)
    prefills = remote_prefills(fleet)
    assert [t for t, _ in all_answers(fleet, fleet.new_tenant())] == [t for t, _ in right]
    assert remote_prefills(fleet) > prefills, "the new one computes prompts again"


def test_a_prefix_that_all_ask_for_is_fetched_instead_of_queued_for(fleet: Server) -> None:
    key, reason = fleet.new_tenant(), 'ratoon_fetches_chosen_total{reason="prefix"}'
    ask(fleet, key, 0)
    fetches, before = metric(fleet, reason), computed(fleet)
    with ThreadPoolExecutor(HERD) as pool:
        own = [[40 + n] * 100 for n in range(HERD)]
        answers = list(pool.map(lambda one: ask(fleet, key, 0, own=one), own))
    assert min(cached for _, cached in answers) > 0.9 * LENGTH, "nobody computed it again"
    assert metric(fleet, reason) > fetches
    done = {name: count - before[name] for name, count in computed(fleet).items()}
    assert min(done["1"], done["2"]) >= 100, "the control: both have answered some"


def test_a_new_engine_fetches_what_is_published(fleet: Server) -> None:
    with fleet.client(fleet.admin_key) as client:
        for number in range(3):
            text = chr(65 + number) * 1500
            body = {"name": f"p{number}", "scope": "all", "text": text}
            client.post("/admin/prefixes", json=body).raise_for_status()
    wait_for(lambda: published_state(fleet) == ["warm"] * 3, WITHIN_S)
    reason = 'ratoon_fetches_chosen_total{reason="published"}'
    assert metric(fleet, reason) == 0, "all of them computed it: nobody had it"
    killed = fleet.engines()["1"]
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: fleet.engines().get("1", killed) != killed, WITHIN_S)
    wait_for(lambda: set(states(fleet).values()) == {"ready"}, WITHIN_S)
    wait_for(lambda: published_state(fleet) == ["warm"] * 3, WITHIN_S)
    wait_for(lambda: pinned_in(fleet, "1") >= 3 * 1500, WITHIN_S)
    # On a busy machine a source may not answer. The engine then does not ask for a while, or
    # repeats its request.
    assert metric(fleet, reason) >= 1
    assert computed(fleet)["1"] < 2 * 1500 + 300, "not all, and the rest of them"
