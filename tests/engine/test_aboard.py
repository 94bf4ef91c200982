"""Who holds blocks and a seat: how one comes, and every way to go."""

from __future__ import annotations

from engine.aboard import Aboard
from engine.sequence import Sequence
from prefix_cache.shelf import Tiers
from storage.move import Tier
from tests.engine.rig import Rig, generate

PROMPT = range(8)


def running(rig: Rig, *names: str) -> Aboard:
    """Those of `names`, each with a first token."""
    for name in names:
        rig.submit(generate(name, [ord(name) % 64, *PROMPT], max_tokens=8))
        rig.step()
    return rig.scheduler.aboard


def one(aboard: Aboard, name: str) -> Sequence:
    (found,) = (one for one in aboard.running if one.request_id == name)
    return found


def waiting(rig: Rig) -> int:
    return len(rig.scheduler.queue)


def test_they_stand_in_order_of_arrival_whoever_comes_back() -> None:
    rig = Rig()
    aboard = running(rig, "a", "b", "c")
    aboard.preempt(one(aboard, "a"), rig.clock())
    assert [sequence.request_id for sequence in aboard.running] == ["b", "c"]
    rig.step()
    assert [sequence.request_id for sequence in aboard.running] == ["a", "b", "c"]


def test_seats_are_each_one_s_own_and_given_back() -> None:
    rig = Rig(max_running=2)
    aboard = running(rig, "a", "b", "c")
    assert aboard.is_full
    assert {sequence.seat for sequence in aboard.running} == {0, 1}
    leaving = one(aboard, "a")
    aboard.stop(leaving, rig.clock())
    assert (leaving.seat, leaving.lease, aboard.is_full) == (None, None, False)
    rig.step()
    assert {(s.request_id, s.seat) for s in aboard.running} == {("b", 1), ("c", 0)}


def test_who_is_stopped_leaves_its_blocks_in_the_tree_and_who_is_expelled_none() -> None:
    found = {}
    for way in ("stop", "expel"):
        rig = Rig()
        aboard = running(rig, "a")
        leaving = one(aboard, "a")
        (aboard.stop if way == "stop" else aboard.expel)(leaving, rig.clock())
        assert rig.cache.pool().leased == 0
        assert (len(aboard.running), waiting(rig)) == (0, 0)
        found[way] = rig.cache.locate(leaving.path, leaving.token_ids).device
        rig.cache.check_invariants()
    assert found == {"stop": 2, "expel": 0}


def test_who_is_preempted_waits_at_the_front_of_its_flow_and_is_counted() -> None:
    rig = Rig(max_running=1)
    aboard = running(rig, "a", "b")
    assert waiting(rig) == 1
    leaving = one(aboard, "a")
    aboard.preempt(leaving, rig.clock())
    assert (aboard.num_preemptions, leaving.num_preemptions, waiting(rig)) == (1, 1, 2)
    rig.step()
    assert [sequence.request_id for sequence in aboard.running] == ["a"]


def test_who_waits_can_be_stopped_too() -> None:
    rig = Rig(max_running=1)
    aboard = running(rig, "a", "b")
    second = rig.scheduler.queue.select(lambda _: 0)
    assert second is not None
    assert second.request_id == "b"
    aboard.stop(second, rig.clock())
    assert ([s.request_id for s in aboard.running], waiting(rig)) == (["a"], 0)


def test_who_loads_has_blocks_and_no_seat() -> None:
    rig = Rig(num_blocks=16, max_batch_tokens=64, tiers=Tiers(host_blocks=64))
    for name in ("first", "second"):
        rig.submit(generate(name, range(38), max_tokens=1))
        rig.run()
    rig.push_out()
    rig.mover.held.add(Tier.DEVICE)  # what goes up does not arrive
    rig.submit(generate("again", range(38), max_tokens=2, loads="always"))
    rig.step(12)
    aboard = rig.scheduler.aboard
    (loading,) = aboard.loading
    assert (loading.seat, loading.lease is None, len(aboard.running)) == (None, False, 0)
    aboard.stop(loading, rig.clock())
    assert aboard.loading == []
    assert loading.lease is None
    rig.mover.held.clear()
    rig.settle_copies()
    assert rig.cache.pool().leased == 0


def test_what_is_to_go_is_what_those_that_run_have_left() -> None:
    rig = Rig(max_batch_tokens=8)
    rig.submit(generate("long", range(20), max_tokens=2))
    rig.step()
    assert rig.scheduler.aboard.tokens_to_go() == 12
    rig.run()
    assert rig.scheduler.aboard.tokens_to_go() == 0
