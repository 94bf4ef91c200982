"""The number of tokens that pushes a prompt down a tier. The paired test is inconclusive on a
server that is too small.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from cli.errors import ServerRefused
from cli.isolation.cases import (
    CASES,
    ENTRY_POINTS,
    MODULE_CASES,
    PUBLISHED_CASES,
    Case,
    Cell,
    TierCase,
)
from cli.isolation.fixtures import HEAVY, LIGHT, Fixture, TenantFixture
from cli.isolation.paired import PairedTest, squeeze
from cli.isolation.reading import ProbePrompt
from cli.isolation.server import ServerFacts, ServerUnderTest
from cli.isolation.verdict import Finding, Outcome, untested

PROMPT = 120


def server(
    device: int, host: int | None, disk: int | None = None, states: tuple[int, ...] = ()
) -> ServerFacts:
    """Return a server whose tiers have room for these numbers of tokens."""
    sizes = {TierCase.DEVICE: device, TierCase.HOST: host, TierCase.DISK: disk}
    return ServerFacts(
        version="1",
        model="m",
        max_model_len=512,
        fingerprint="f",
        block_size=16,
        tier_states=dict(zip(("device", "host", "disk"), states, strict=False)),
        tier_tokens={str(tier): size for tier, size in sizes.items() if size is not None},
    )


@pytest.mark.parametrize(
    ("facts", "tier"),
    [
        (server(1536, 6144, 21408), TierCase.HOST),
        (server(1536, 6144, 21408), TierCase.DISK),
        (server(500_000, 4_000_000, 40_000_000), TierCase.HOST),
        (server(500_000, 4_000_000, 40_000_000), TierCase.DISK),
        (server(500_000, 50_000), TierCase.HOST),  # a host tier smaller than the device's
        (server(500_000, None, 4_000_000), TierCase.DISK),  # without a host tier
    ],
)
def test_the_prompt_fits_where_it_is_to_lie_and_is_pushed_out_of_what_is_above(
    facts: ServerFacts, tier: TierCase
) -> None:
    wanted = squeeze(facts, tier, PROMPT)
    may_hold = {name: int(wanted.ceiling * size) for name, size in facts.tier_tokens.items()}
    above = sum(
        size
        for name, size in may_hold.items()
        if list(TierCase).index(TierCase(name)) < list(TierCase).index(tier)
    )
    assert wanted.fill_tokens >= above + PROMPT
    assert may_hold[tier] >= PROMPT + (wanted.fill_tokens - above) + PROMPT
    for name in (TierCase.HOST, tier):
        assert may_hold.get(name, PROMPT) >= PROMPT
    assert wanted.fill_tokens < 20_000  # does not depend on the server's size


@pytest.mark.parametrize("states", [(76, 327, 424), (312, 200, 4000), (40, 400, 40)])
@pytest.mark.parametrize("tier", [TierCase.HOST, TierCase.DISK])
def test_there_is_room_for_states_of_recurrent_layers(
    tier: TierCase, states: tuple[int, ...]
) -> None:
    facts = server(500_000, 4_000_000, 40_000_000, states)
    wanted = squeeze(facts, tier, PROMPT, 8)
    assert wanted.ceiling * facts.tier_states[TierCase.DEVICE] / 8 >= 1, "a state can be made"
    assert wanted.ceiling * facts.tier_states[tier] >= 3
    control = squeeze(server(500_000, 4_000_000, 40_000_000), tier, PROMPT)
    assert control.ceiling < wanted.ceiling
    assert control.fill_tokens < wanted.fill_tokens


@pytest.mark.parametrize("tier", [TierCase.HOST, TierCase.DISK])
def test_modules_fit_on_the_device_too(tier: TierCase) -> None:
    facts = server(500_000, 4_000_000, 40_000_000)
    wanted = squeeze(facts, tier, PROMPT, stays_on_device=True)
    assert wanted.ceiling * 500_000 >= PROMPT
    assert squeeze(facts, tier, PROMPT).ceiling * 500_000 < PROMPT, "the control"
    assert wanted.fill_tokens < 20_000


def test_a_tier_smaller_than_a_few_prompts_is_had_whole() -> None:
    assert squeeze(server(1536, 160), TierCase.HOST, PROMPT).ceiling == 1.0


class RefusedTest(PairedTest):
    """A test whose server refuses every cell with an error status."""

    def __init__(self, status: int) -> None:
        self.status = status

    async def _prepared(self, cell: Cell, stack: AsyncExitStack, heavy: float = HEAVY) -> Fixture:
        raise ServerRefused("the modules are more than the cache's pool holds", status=self.status)


@pytest.mark.parametrize(("case", "status"), [(MODULE_CASES[0], 400), (PUBLISHED_CASES[0], 409)])
async def test_a_cell_for_which_there_is_no_room_is_inconclusive(case: Case, status: int) -> None:
    cell = Cell(case, TierCase.DEVICE, ENTRY_POINTS[0])
    finding = await RefusedTest(status)._once(cell)
    assert finding.outcome is Outcome.INCONCLUSIVE
    with pytest.raises(ServerRefused):
        await RefusedTest(500)._once(cell)


async def test_a_refused_request_without_modules_ends_the_test() -> None:
    with pytest.raises(ServerRefused):
        await RefusedTest(400)._once(Cell(CASES[0], TierCase.DEVICE, ENTRY_POINTS[0]))


class Operator:
    """An operator double that records the weights set for tenants."""

    def __init__(self) -> None:
        self.weights = dict[str, float]()

    async def call(self, method: str, path: str, body: dict[str, float]) -> None:
        assert method == "PATCH"
        self.weights[path.rsplit("/", 1)[1]] = body["weight"]


class OverRestart(PairedTest):
    """A test of one cell whose requests record the tenants' weights, and may be refused."""

    def __init__(self, case: Case, *, has_modules: bool = True, is_refused: bool = False) -> None:
        self.cell = Cell(case, TierCase.RESTARTED, ENTRY_POINTS[0])
        facts = msgspec.structs.replace(server(1536, 3072), has_modules=has_modules)
        self.operator, self._is_refused = Operator(), is_refused
        served = SimpleNamespace(admin=self.operator, facts=facts)
        self._server = cast("ServerUnderTest", served)
        self.noted = dict[str, float]()

    async def _prepared(self, cell: Cell, stack: AsyncExitStack, heavy: float = HEAVY) -> Fixture:
        first, other = TenantFixture("one", "k"), TenantFixture("two", "k")
        other = first if cell.case.one_tenant else other
        return Fixture(cell, first, other, {}, {}, ProbePrompt([]), None, 0)

    async def _compared(self, fixture: Fixture) -> Finding:
        if self._is_refused:
            raise ServerRefused("the modules are more than there is room for", status=400)
        self.noted = dict(self.operator.weights)
        return untested(fixture.cell, Outcome.PASSED, "")

    async def run(self) -> Outcome:
        saved = await self._saved(self.cell, AsyncExitStack(), 28)
        found = await self._restored(saved, 28) if isinstance(saved, Fixture) else saved
        return found.outcome


async def test_the_tenants_of_a_module_are_heavy_while_it_is_compared_after_a_restart() -> None:
    test = OverRestart(MODULE_CASES[0])
    assert await test.run() is Outcome.PASSED
    assert test.noted == {"one": 28, "two": 28}
    assert test.operator.weights == {"one": HEAVY, "two": LIGHT}
    alone = OverRestart(MODULE_CASES[2])
    assert await alone.run() is Outcome.PASSED
    assert (alone.noted, alone.operator.weights) == ({"one": 28}, {"one": HEAVY})
    plain = OverRestart(CASES[0])
    assert await plain.run() is Outcome.PASSED
    assert plain.operator.weights == {}, "the control"


async def test_a_module_without_room_after_a_restart_is_inconclusive() -> None:
    assert await OverRestart(MODULE_CASES[0], is_refused=True).run() is Outcome.INCONCLUSIVE
    assert await OverRestart(MODULE_CASES[0], has_modules=False).run() is Outcome.NOT_APPLICABLE
    with pytest.raises(ServerRefused):
        await OverRestart(CASES[0], is_refused=True).run()
