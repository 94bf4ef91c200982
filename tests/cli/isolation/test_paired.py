"""How little it takes to push one prompt down, on servers of any shape."""

from __future__ import annotations

import pytest

from cli.isolation.cases import TierCase
from cli.isolation.paired import squeeze
from cli.isolation.server import ServerFacts

PROMPT = 120


def server(
    device: int, host: int | None, disk: int | None = None, states: tuple[int, ...] = ()
) -> ServerFacts:
    """A server with tiers of so many tokens."""
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
        (server(500_000, 50_000), TierCase.HOST),  # less memory than the device has
        (server(500_000, None, 4_000_000), TierCase.DISK),  # straight to disk
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
    assert wanted.fill_tokens < 20_000  # whatever the server's size


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


def test_a_tier_smaller_than_a_few_prompts_is_had_whole() -> None:
    assert squeeze(server(1536, 160), TierCase.HOST, PROMPT).ceiling == 1.0
