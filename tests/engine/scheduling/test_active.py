"""Sequences that hold blocks and a batch slot: their start, and every kind of end."""

from __future__ import annotations

from engine.scheduling.active import ActiveSequences
from engine.sequences.sequence import Sequence
from prefix_cache.tiers.tier_pools import Tiers
from storage.move import Tier
from tests.engine.rigs.rig import Rig, generate

PROMPT = range(8)


def running(rig: Rig, *names: str) -> ActiveSequences:
    """Start a sequence for each of `names`, and run it to its first token."""
    for name in names:
        rig.submit(generate(name, [ord(name) % 64, *PROMPT], max_tokens=8))
        rig.step()
    return rig.scheduler.active


def one(active: ActiveSequences, name: str) -> Sequence:
    (found,) = (one for one in active.running if one.request_id == name)
    return found


def num_waiting(rig: Rig) -> int:
    return len(rig.scheduler.queue)


def test_running_sequences_stand_in_order_of_arrival_whoever_comes_back() -> None:
    rig = Rig()
    active = running(rig, "a", "b", "c")
    active.preempt(one(active, "a"), rig.clock())
    assert [sequence.request_id for sequence in active.running] == ["b", "c"]
    rig.step()
    assert [sequence.request_id for sequence in active.running] == ["a", "b", "c"]


def test_seats_are_each_one_s_own_and_given_back() -> None:
    rig = Rig(max_running=2)
    active = running(rig, "a", "b", "c")
    assert active.is_full
    assert {sequence.batch_slot for sequence in active.running} == {0, 1}
    leaving = one(active, "a")
    active.stop(leaving, rig.clock())
    assert (leaving.batch_slot, leaving.lease, active.is_full) == (None, None, False)
    rig.step()
    assert {(s.request_id, s.batch_slot) for s in active.running} == {("b", 1), ("c", 0)}


def test_who_is_stopped_leaves_its_blocks_in_the_tree_and_who_is_expelled_none() -> None:
    found = {}
    for way in ("stop", "expel"):
        rig = Rig()
        active = running(rig, "a")
        leaving = one(active, "a")
        (active.stop if way == "stop" else active.expel)(leaving, rig.clock())
        assert rig.cache.capacity.pool().leased == 0
        assert (len(active.running), num_waiting(rig)) == (0, 0)
        found[way] = rig.cache.tree.match(leaving.path, leaving.token_ids).found.device
        rig.cache.check_invariants()
    assert found == {"stop": 2, "expel": 0}


def test_who_is_preempted_waits_at_the_front_of_its_flow_and_is_counted() -> None:
    rig = Rig(max_running=1)
    active = running(rig, "a", "b")
    assert num_waiting(rig) == 1
    leaving = one(active, "a")
    active.preempt(leaving, rig.clock())
    assert (active.num_preemptions, leaving.lease, num_waiting(rig)) == (1, None, 2)
    rig.step()
    assert [sequence.request_id for sequence in active.running] == ["a"]


def test_who_waits_can_be_stopped_too() -> None:
    rig = Rig(max_running=1)
    active = running(rig, "a", "b")
    second = rig.scheduler.queue.select(lambda _: 0)
    assert second is not None
    assert second.request_id == "b"
    active.stop(second, rig.clock())
    assert ([s.request_id for s in active.running], num_waiting(rig)) == (["a"], 0)


def test_who_loads_has_blocks_and_no_seat() -> None:
    rig = Rig(num_blocks=16, max_batch_tokens=64, tiers=Tiers(host_blocks=64))
    for name in ("first", "second"):
        rig.submit(generate(name, range(38), max_tokens=1))
        rig.run()
    rig.push_out()
    rig.mover.held.add(Tier.DEVICE)  # loads never end
    rig.submit(generate("again", range(38), max_tokens=2, loads="always"))
    rig.step(12)
    active = rig.scheduler.active
    (loading,) = active.loading
    assert (loading.batch_slot, loading.lease is None, len(active.running)) == (None, False, 0)
    active.stop(loading, rig.clock())
    assert active.loading == []
    assert loading.lease is None
    rig.mover.held.clear()
    rig.settle_copies()
    assert rig.cache.capacity.pool().leased == 0


def test_what_is_to_go_is_what_those_that_run_have_left() -> None:
    rig = Rig(max_batch_tokens=8)
    rig.submit(generate("long", range(20), max_tokens=2))
    rig.step()
    assert rig.scheduler.active.remaining_tokens() == 12
    rig.run()
    assert rig.scheduler.active.remaining_tokens() == 0


def test_a_flow_s_loads_keep_no_other_flow_from_starting() -> None:
    rig = Rig(max_batch_tokens=64, max_running=3, tiers=Tiers(host_blocks=64))
    for number in range(8):
        rig.submit(generate(f"first {number}", [number % 4, *PROMPT], max_tokens=1))
        rig.run()
    rig.push_out()
    rig.mover.held.add(Tier.DEVICE)  # loads never end
    for number in range(4):
        prompt = [number, *PROMPT]
        rig.submit(generate(f"load {number}", prompt, flow="loads", loads="always"))
        rig.step(12)
    active = rig.scheduler.active
    assert (len(active.loading), num_waiting(rig)) == (3, 1), "the control: a flow has a bound"
    for name in ("x", "y"):
        rig.submit(generate(name, [ord(name) % 64, *PROMPT], max_tokens=60, flow="other"))
        rig.step(12)
    assert [sequence.request_id for sequence in active.running] == ["x", "y"]
    assert (len(active.loading), num_waiting(rig)) == (3, 1)
