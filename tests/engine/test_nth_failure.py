"""Any one thing that fails harms nothing but itself: fail the Nth call, N = 1..K."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from prefix_cache.shelf import Tiers
from storage.move import Move, Tier
from tests.engine.rig import Rig, generate

MANY = 10_000


def trace(fail_copy: int = MANY, how: str = "failed", fail_step: int = MANY) -> tuple[Rig, int]:
    """Prompts that go down, come back and grow, with one copy or one step failing.

    Returns the rig and how many copies there were.
    """
    rig = Rig(
        num_blocks=14,
        max_batch_tokens=24,
        max_running=3,
        steps_ahead=1,
        tiers=Tiers(host_blocks=8, disk_blocks=24),
    )
    rig.mover.choose_fate = nth(fail_copy, how)
    requests = [
        generate(f"r{number}", [*range(number % 3, 24), number], max_tokens=4)
        for number in range(12)
    ]
    for request in requests:
        rig.submit(request)
        for _ in range(3):
            if len(rig.runner.steps) == fail_step and not rig.runner.raising:
                rig.runner.raising = [MemoryError("no room")]
                fail_step = MANY
            rig.step()
    rig.run()
    for request in requests:
        rig.expect_output(request)
    copies = sum(rig.mover.ended.values())
    rig.expect_nothing_left()
    return rig, copies


def nth(number: int, how: str) -> Callable[[Move], str]:
    """The fate of copies: the `number`th fails, the others do not."""
    seen = 0

    def fate(move: Move) -> str:
        nonlocal seen
        seen += 1
        if seen != number:
            return "done"
        return how if move.source_tier is Tier.DISK else "failed"

    return fate


def test_without_a_failure_blocks_go_there_and_back() -> None:
    """The control: there are copies to fail, of all kinds."""
    rig, copies = trace()
    assert copies > 30
    directions = {(source, target) for _, source, target in rig.mover.ended}
    assert {(Tier.DEVICE, Tier.HOST), (Tier.HOST, Tier.DEVICE)} <= directions
    assert len(rig.runner.steps) > 30


@pytest.mark.parametrize("how", ["failed", "lost"])
@pytest.mark.parametrize("first", range(1, 61, 10))
def test_one_copy_fails(first: int, how: str) -> None:
    for number in range(first, first + 10):
        rig, _ = trace(fail_copy=number, how=how)
        assert sum(n for (fate, *_), n in rig.mover.ended.items() if fate != "done") <= 1


@pytest.mark.parametrize("number", range(0, 30, 3))
def test_one_step_finds_no_room_on_the_device(number: int) -> None:
    rig, _ = trace(fail_step=number)
    assert rig.runner.num_raised == 1
