"""A command that drops many blocks takes a slice of each iteration, and is answered at its end."""

from __future__ import annotations

import pytest

from engine.link.event_messages import StepReply
from engine.link.messages import RecordedFlushes
from engine.link.query_messages import (
    Flush,
    Flushed,
    MarkedForgotten,
)
from engine.queries.prunings import AT_ONCE, SLICE_S
from prefix_cache.tiers.tier_pools import Tiers
from storage.move import Tier
from tests.engine.queries.test_erasure import SlowDisk
from tests.engine.rigs.rig import CLIENT, OTHER, Clock, Rig, generate

MANY = 12 * AT_ONCE


class PassingClock(Clock):
    """A clock that moves on each time it is read, so that a slice has few pieces."""

    def __call__(self) -> float:
        self.now += SLICE_S / 4
        return self.now


def filled() -> Rig:
    """Return an engine with `MANY` prompts of the flow "many", and one prompt of "few"."""
    rig = Rig(num_blocks=8 * MANY, max_batch_tokens=256, clock=PassingClock(), check_every=50)
    for number in range(MANY):
        prompt = [number % 64, number // 64, 1, 2, 3]
        rig.submit(generate(f"m{number}", prompt, max_tokens=1, flow="many"))
    rig.submit(generate("few", range(20, 29), max_tokens=1, flow="few", namespace=OTHER))
    rig.run()
    assert len(rig.cache.tree.owned["many"]) == MANY
    return rig


def replies(rig: Rig) -> list[object]:
    return [one for one in rig.link.sent[CLIENT] if isinstance(one, Flushed | MarkedForgotten)]


def steps_until_reply(rig: Rig) -> int:
    before = len(replies(rig))
    for taken in range(1, 200):
        rig.step()
        if len(replies(rig)) > before:
            return taken
    raise AssertionError("no reply")


def test_a_large_flush_takes_several_iterations_and_a_small_one_takes_one() -> None:
    rig = filled()
    rig.link.say(Flush(query_id="small", flow="few", flush_id="fl_1"))
    assert steps_until_reply(rig) == 1
    rig.link.say(Flush(query_id="large", flow="many", flush_id="fl_2"))
    assert steps_until_reply(rig) > 4
    assert not rig.cache.tree.owned
    large = replies(rig)[-1]
    assert isinstance(large, Flushed)
    assert large.blocks == MANY
    assert large.erasure is not None
    assert large.erasure.is_over


def test_other_flows_get_tokens_meanwhile() -> None:
    rig = filled()
    rig.submit(generate("other", range(30, 40), max_tokens=40, flow="other", namespace=OTHER))
    rig.step(3)
    rig.link.say(Flush(query_id="large", flow="many", flush_id="fl_2"))
    with_tokens = 0
    while not replies(rig):
        before = len(rig.link.tokens("other"))
        rig.step()
        with_tokens += len(rig.link.tokens("other")) > before
    assert with_tokens > 4
    rig.run()
    assert len(rig.link.tokens("other")) == 40


def test_a_small_command_does_not_wait_for_a_large_one() -> None:
    rig = filled()
    rig.link.say(Flush(query_id="large", flow="many", flush_id="fl_2"))
    rig.step()
    rig.link.say(Flush(query_id="small", flow="few", flush_id="fl_1"))
    assert steps_until_reply(rig) == 1
    [small] = replies(rig)
    assert isinstance(small, Flushed)
    assert small.query_id == "small"


def test_who_asks_again_meanwhile_gets_the_same_answer_at_the_end() -> None:
    rig = filled()
    rig.link.say(Flush(query_id="first", flow="many", flush_id="fl_2"))
    rig.step()
    rig.link.say(Flush(query_id="again", flow="many", flush_id="fl_2"))
    rig.link.say(RecordedFlushes(flushes={"fl_2": "many"}))
    rig.step()
    assert not replies(rig)
    steps_until_reply(rig)
    first, again = replies(rig)
    assert isinstance(first, Flushed)
    assert isinstance(again, Flushed)
    assert (first.query_id, again.query_id) == ("first", "again")
    assert (first.blocks, first.erasure) == (again.blocks, again.erasure)


def test_the_disk_notes_the_flush_when_all_blocks_are_dropped() -> None:
    disk = SlowDisk()
    rig = Rig(num_blocks=8 * MANY, disk=disk, tiers=Tiers(disk_blocks=64), clock=PassingClock())
    for number in range(MANY):
        rig.submit(generate(f"m{number}", [number % 64, number // 64, 1, 2, 3], max_tokens=1))
    rig.run()
    rig.link.say(Flush(query_id="f", flow="flow", flush_id="fl_1"))
    rig.step()
    assert (disk.told, disk.noted) == ([], [])
    steps_until_reply(rig)
    rig.step()
    assert (disk.told, disk.noted) == (["flow"], ["fl_1"])


def test_a_stopping_engine_ends_a_flush_before_it_writes_blocks_to_disk() -> None:
    disk = SlowDisk()
    tiers = Tiers(disk_blocks=8 * MANY)
    rig = Rig(num_blocks=8 * MANY, disk=disk, tiers=tiers, clock=PassingClock())
    for number in range(MANY):
        rig.submit(generate(f"m{number}", [number % 64, number // 64, 1, 2, 3], max_tokens=1))
    rig.submit(generate("few", range(20, 29), max_tokens=1, flow="few", namespace=OTHER))
    rig.run()
    rig.link.say(Flush(query_id="f", flow="flow", flush_id="fl_1"))
    rig.step()
    assert not replies(rig)
    rig.core.spill(1e6)
    assert len(replies(rig)) == 1
    assert disk.noted == ["fl_1"]
    held = rig.cache.capacity.quota_usages[Tier.DISK].held
    assert (held["flow"], held["few"]) == (0, 2), "the other flow's blocks are the control"


@pytest.mark.parametrize("is_first", [True, False])
def test_flushes_recorded_before_the_first_request_end_before_it_starts(is_first: bool) -> None:
    rig = filled()
    rig.core._inbox._has_served = not is_first
    rig.link.say(RecordedFlushes(flushes={"fl_2": "many"}))
    rig.submit(generate("next", range(9), max_tokens=1, flow="few"))
    rig.step()
    left = len(rig.cache.tree.owned["many"])
    assert left
    while "next" not in {
        event.request_id
        for one in rig.link.sent[CLIENT]
        if isinstance(one, StepReply)
        for event in one.events
    }:
        rig.step()
    assert ("many" in rig.cache.tree.owned) != is_first
