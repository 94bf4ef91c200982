"""The named workloads have fixed sizes, and their requests share the right prefixes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from cli.load.phases import (
    SMALL,
    SPECIAL_IDS,
    WORKLOADS,
    LoadPhase,
    WorkloadName,
    WorkloadSizes,
    draw_phases,
    prompts_of,
)

VOCAB = 2048


def prompts(phase: LoadPhase) -> list[list[int]]:
    return [prompt for chain in phase.chains for prompt, _ in prompts_of(chain)]


def in_common(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_decides_and_ids_stay_within_the_vocabulary(name: WorkloadName) -> None:
    drawn = draw_phases(name, SMALL, VOCAB, seed=1)
    assert drawn == draw_phases(name, SMALL, VOCAB, seed=1)
    assert drawn != draw_phases(name, SMALL, VOCAB, seed=2)
    for phase in drawn:
        ids = [token for chain in phase.chains for turn in chain for token in turn.ids]
        assert min(ids) >= SPECIAL_IDS
        assert max(ids) < VOCAB - SPECIAL_IDS


def test_tenants_share_with_all_and_more_among_themselves() -> None:
    [phase] = draw_phases("tenants", SMALL, VOCAB, seed=1)
    sent = prompts(phase)
    assert len(sent) == SMALL.tenants * SMALL.per_tenant
    shared = {in_common(a, b) for a in sent for b in sent if a is not b}
    assert shared == {SMALL.of_all, SMALL.of_all + SMALL.of_tenant}
    assert {len(prompt) for prompt in sent} == {SMALL.of_all + SMALL.of_tenant + SMALL.own}


def test_a_conversation_goes_on_from_what_was_said() -> None:
    [phase] = draw_phases("multiturn", SMALL, VOCAB, seed=1)
    for chain in phase.chains:
        turns = [prompt for prompt, _ in prompts_of(chain)]
        for before, after in pairwise(turns):
            assert after[: len(before)] == before
            assert len(after) == len(before) + SMALL.turn_output + SMALL.user
    assert phase.concurrency == len(phase.chains) == SMALL.conversations


def test_hot_prompts_begin_as_the_cold_ones_did() -> None:
    phases = draw_phases("ttft-hot", SMALL, VOCAB, seed=1)
    assert [phase.name for phase in phases] == [
        f"ttft-{kind}-{length}" for length in SMALL.prompts for kind in ("cold", "hot")
    ]
    for cold, hot, length in zip(phases[::2], phases[1::2], SMALL.prompts, strict=True):
        for one, other in zip(prompts(cold), prompts(hot), strict=True):
            assert in_common(one, other) == length
            assert len(one) == len(other) == length + SMALL.ending


def test_what_was_pushed_out_comes_back() -> None:
    cold, fill, back = draw_phases("reload", SMALL, VOCAB, seed=1)
    assert [phase.name for phase in (cold, fill, back)] == [
        "reload-cold",
        "reload-fill",
        "reload-back",
    ]
    for one, other in zip(prompts(cold), prompts(back), strict=True):
        assert in_common(one, other) == SMALL.reload_prompt
    assert all(in_common(a, b) < 8 for a in prompts(cold) for b in prompts(fill))


def test_the_full_sizes_are_those_that_peers_were_measured_with() -> None:
    sizes = WorkloadSizes()
    [mixed] = draw_phases("mixed", sizes, 128_256, seed=7)
    assert (mixed.concurrency, len(prompts(mixed))) == (256, 256)
    lengths = [len(prompt) for prompt in prompts(mixed)]
    assert 100 <= min(lengths) < 150
    assert 950 < max(lengths) <= 1024
    [tenants] = draw_phases("tenants", sizes, 128_256, seed=7)
    assert (tenants.concurrency, len(prompts(tenants))) == (64, 512)
    assert {len(prompt) for prompt in prompts(tenants)} == {4224}
    [multiturn] = draw_phases("multiturn", sizes, 128_256, seed=7)
    assert (multiturn.concurrency, len(prompts(multiturn))) == (64, 384)
    itl = draw_phases("itl", sizes, 128_256, seed=7)
    assert [(phase.concurrency, len(prompts(phase))) for phase in itl] == [
        (batch, batch) for batch in (1, 32, 128, 256)
    ]
