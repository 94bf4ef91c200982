"""Many choices of one prompt: their computation fits a limit, or the tenant owes the excess."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.link.messages import Generate
from gateway.tenant_limits import Budget, Limits
from tests.doubles.replicas.fake_replica import FakeReplica
from tests.gateway.usage.ledger.asking import Asking
from tests.gateway.usage.ledger.client import Answer, Pace, ask
from tests.gateway.usage.ledger.house import House, house

RATE = 6000
RATED = Limits(tokens_per_minute=RATE)
# budget in units, for tokens that cost 1 unit per million
BUDGETED = Limits(budget=Budget(units=RATE / 1e6, period="total"))
CHOICES = 7
PROMPTS = 8


class Keeper(FakeReplica):
    """An engine that sends no tokens. Without `keeps`, its cache holds no blocks."""

    def __init__(self, keeps: bool) -> None:
        super().__init__("a")
        self._keeps = keeps
        self.script = self._says

    @property
    def num_computed(self) -> int:
        """Return the number of prompt tokens computed so far."""
        return sum(did.prompt for did in self.computed.values())

    def _says(self, _: Generate) -> list[int]:
        if not self._keeps:
            self.lose_cache()
        return []


@dataclass(frozen=True)
class Client:
    """A tenant of a gateway whose clock does not move."""

    house: House
    engine: Keeper
    id: str
    key: str

    async def ask(self, **body: Any) -> Answer:
        asking = Asking("/v1/completions", {"max_tokens": 0, "stream": False, **body})
        return await ask(self.house, asking.encoded(self.key), Pace(), Random(0))


@pytest.fixture(params=[True, False], ids=["keeps", "keeps nothing"])
def keeps(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[RATED, BUDGETED], ids=["rate", "budget"])
def limits(request: pytest.FixtureRequest) -> Limits:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def client(
    tiny_model: Path, tmp_path: Path, keeps: bool, limits: Limits
) -> AsyncIterator[Client]:
    engine = Keeper(keeps)
    async with house(tiny_model, tmp_path, engine) as gateway:
        yield Client(gateway, engine, *await gateway.tenant("acme", limits))


@pytest.mark.parametrize("length", [14, 99])
async def test_no_more_is_computed_than_a_limit_has_room_for(
    client: Client, limits: Limits, length: int, keeps: bool
) -> None:
    prompts = [letter * length for letter in "abcdefgh"[:PROMPTS]]
    answers = [await client.ask(prompt=prompts, n=CHOICES) for _ in range(12)]
    told = [json.loads(one.body)["usage"] for one in answers if one.status == 200]
    assert {usage["prompt_tokens"] for usage in told} == {PROMPTS * (length + 1)}
    computed = client.engine.num_computed
    tokens, spent = client.house.books.charged(client.id)
    if limits is RATED:
        assert tokens == computed <= RATE
    else:
        assert computed <= spent <= RATE
    shares = keeps and length > 16
    assert (len(told) * PROMPTS * CHOICES * (length + 1) == computed) is not shares


@pytest.mark.parametrize("limits", [RATED], indirect=True)
async def test_what_never_fits_unless_it_is_shared_may_run_and_is_owed(
    client: Client, keeps: bool
) -> None:
    answer = await client.ask(prompt="a" * 999, n=CHOICES)
    assert answer.status == 200
    tokens, _ = client.house.books.charged(client.id)
    assert tokens == client.engine.num_computed == (1000 + 6 * 8 if keeps else 7000)
    assert (await client.ask(prompt="b")).status == (200 if keeps else 429)
