"""The tokens needed to push one prompt down a tier, and servers too small for this test."""

from __future__ import annotations

from contextlib import AsyncExitStack

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
from cli.isolation.fixtures import Fixture
from cli.isolation.paired import PairedTest, squeeze
from cli.isolation.server import ServerFacts
from cli.isolation.verdict import Outcome

PROMPT = 120


def server(
    device: int, host: int | None, disk: int | None = None, states: tuple[int, ...] = ()
) -> ServerFacts:
    """Return a server whose tiers hold these numbers of tokens."""
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
    assert wanted.fill_tokens < 20_000  # independent of the server's size


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
    """A test whose every cell is refused by its server with a status."""

    def __init__(self, status: int) -> None:
        self.status = status

    async def _prepared(self, cell: Cell, stack: AsyncExitStack) -> Fixture:
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
