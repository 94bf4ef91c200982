"""Cached tokens that no request has read, by key, over HTTP, however a request ends."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

import httpx
import pytest

from tests.doubles.engine.fake_engine import ENGINE_SECONDS, FakeEngine, hanging_at, saying
from tests.doubles.gateway.served import MODEL, Served
from tests.doubles.waiting import wait_for

WITHIN_S = 20.0
BLOCK = 16
_PROMPTS = count(1)


def a_prompt(blocks: int) -> list[int]:
    """Make a prompt of whole blocks that no other test uses."""
    return [next(_PROMPTS) % 250] * BLOCK * blocks


@dataclass
class House:
    """A tenant with two keys."""

    served: Served
    keys: tuple[str, str]
    ids: tuple[str, str]

    def ask(self, prompt: list[int], key: int = 0, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.keys[key]}"}
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, **more}
        url = f"{self.served.url}/v1/completions"
        answer = httpx.post(url, json=body, headers=headers, timeout=60)
        assert answer.status_code == 200
        return answer

    def rows(self) -> list[dict[str, Any]]:
        headers = {"authorization": f"Bearer {self.keys[0]}"}
        rows: list[dict[str, Any]] = httpx.get(
            f"{self.served.url}/v1/usage", headers=headers
        ).json()["usage"]
        return rows

    def engine_ms(self) -> list[float]:
        """Return the engine time of each key, in milliseconds."""
        return [
            sum(row["engine_ms"] or 0.0 for row in self.rows() if row["key_id"] == key)
            for key in self.ids
        ]

    def unread(self) -> list[tuple[int, int]]:
        """Return, for each key, the tokens written and the tokens never read."""
        rows = self.rows()
        return [
            (
                sum(row["cache_written_tokens"] for row in rows if row["key_id"] == key),
                sum(row["cache_unread_tokens"] for row in rows if row["key_id"] == key),
            )
            for key in self.ids
        ]

    def comes_to(self, *wanted: tuple[int, int]) -> bool:
        """Return whether the usage store soon has these counts; usage is stored once a second."""
        wait_for(lambda: self.unread() == list(wanted), WITHIN_S)
        return self.unread() == list(wanted)


def a_house(served: Served, name: str) -> House:
    headers = {"authorization": f"Bearer {served.admin_key}"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=60) as admin:
        tenant = admin.post("/admin/tenants", json={"name": name}).json()["id"]
        made = [admin.post(f"/admin/tenants/{tenant}/keys", json={}).json() for _ in range(2)]
    (one, other), (id_of_one, id_of_other) = (
        [issued["key"] for issued in made],
        [issued["record"]["id"] for issued in made],
    )
    return House(served, (one, other), (id_of_one, id_of_other))


def test_another_key_s_request_reads_what_the_first_one_wrote(
    served: Served, engine: FakeEngine
) -> None:
    house, prompt, lonely = a_house(served, "two keys"), a_prompt(3), a_prompt(2)
    house.ask(prompt)
    house.ask(lonely, key=1)
    assert house.comes_to((48, 48), (32, 32))
    house.ask(prompt, key=1)
    assert house.comes_to((48, 0), (32, 32))
    house.ask(prompt, key=1)
    house.ask([*prompt, *a_prompt(1)])
    assert house.comes_to((64, 16), (32, 32))


def test_another_tenant_s_equal_prompt_reads_nothing(served: Served, engine: FakeEngine) -> None:
    house, stranger, prompt = a_house(served, "one"), a_house(served, "other"), a_prompt(3)
    house.ask(prompt)
    stranger.ask(prompt)
    assert stranger.comes_to((48, 48), (0, 0))
    stranger.ask(prompt)  # positive control
    assert stranger.comes_to((48, 0), (0, 0))
    assert house.comes_to((48, 48), (0, 0))


@pytest.mark.parametrize("choices", [1, 2])
def test_a_stop_string_does_not_hide_what_was_written(
    served: Served, engine: FakeEngine, choices: int
) -> None:
    """Count written tokens after a stop string.

    The gateway ends the choice, and the engine's report of the choice comes after the answer.
    """
    engine.script = saying("one. two")
    house, prompt = a_house(served, f"stops {choices}"), a_prompt(3)
    answer = house.ask(prompt, max_tokens=8, stop=["."], n=choices).json()
    assert {choice["text"] for choice in answer["choices"]} == {"one"}
    # further choices read the prompt's blocks, so these are not unread
    unread = 48 if choices == 1 else 0
    assert house.comes_to((48, unread), (0, 0))
    house.ask(prompt, key=1, max_tokens=8, stop=["."])
    assert house.comes_to((48, 0), (0, 0))


def test_a_client_that_leaves_has_written_and_read(served: Served, engine: FakeEngine) -> None:
    house, prompt, other = a_house(served, "leaves"), a_prompt(3), a_prompt(1)
    house.ask(other, key=1)
    engine.pace = hanging_at(2)
    for asked in (prompt, other):
        headers = {"authorization": f"Bearer {house.keys[0]}"}
        body = {"model": MODEL, "prompt": asked, "stream": True}
        url = f"{served.url}/v1/completions"
        with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as answer:
            lines = (line for line in answer.iter_lines() if line)
            assert next(lines).startswith("data:")
    assert house.comes_to((48, 48), (16, 0))


def test_the_engine_s_time_counts_whoever_ends_a_choice(served: Served, engine: FakeEngine) -> None:
    engine.script = saying("one. two")
    house = a_house(served, "time")
    assert house.engine_ms() == [0.0, 0.0]
    house.ask(a_prompt(1), n=2)
    # this request is reported after its answer
    house.ask(a_prompt(1), key=1, max_tokens=8, stop=["."])
    one = ENGINE_SECONDS * 1000
    wait_for(lambda: house.engine_ms() == [2 * one, one], WITHIN_S)
    assert house.engine_ms() == [2 * one, one]


def test_every_choice_bears_the_label_of_its_key_and_day(
    served: Served, engine: FakeEngine
) -> None:
    house = a_house(served, "labels")
    for key in (0, 1):
        house.ask(a_prompt(1), key=key, n=2)
    labels = [request.writer for request in engine.requests]
    assert labels[0] == labels[1] != labels[2] == labels[3]
    assert house.ids[0] in labels[0]
    assert house.ids[1] in labels[2]
    assert not any(key in label for key in house.keys for label in labels)
