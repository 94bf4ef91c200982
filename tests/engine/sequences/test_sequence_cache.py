"""Requests that begin alike wait for one computation of their common prefix.

If this computation ends early, the others compute the prefix.
"""

from __future__ import annotations

import pytest

from engine.link.messages import Cancel
from engine.sequences.sequence_cache import LeaseMissing, lease_of
from prefix_cache.namespace import Namespace
from tests.engine.rigs.rig import Rig, generate
from tests.engine.rigs.sequences import waiting

PROMPT = list(range(40))


def cold_crowd(rig: Rig, size: int = 5) -> list[str]:
    """Submit requests for one uncached prompt."""
    names = [f"r{number}" for number in range(size)]
    for name in names:
        rig.submit(generate(name, PROMPT, max_tokens=2))
    return names


class TestSingleFlight:
    def test_a_crowd_computes_its_prefix_once(self) -> None:
        rig = Rig(max_batch_tokens=16, num_blocks=200)
        names = cold_crowd(rig)
        rig.run()
        # the 40 prompt tokens once, and for each request the last partial block and the output
        assert rig.runner.tokens_computed <= 40 + 5 * (4 + 2)
        assert rig.core.stats().windows["all"].computed_tokens <= 40 + 4 * 4
        for name in names:
            rig.expect_output(generate(name, PROMPT, max_tokens=2))

    def test_without_cache_each_computes_all(self) -> None:
        """Disable the cache (positive control): each request then computes everything."""
        rig = Rig(max_batch_tokens=16, num_blocks=200)
        for number in range(5):
            rig.submit(generate(str(number), PROMPT, max_tokens=2, use_cache=False))
        rig.run()
        assert rig.core.stats().windows["all"].computed_tokens == 5 * 40

    def test_another_namespace_does_not_wait(self) -> None:
        rig = Rig(max_batch_tokens=50, num_blocks=200)
        rig.submit(generate("mine", PROMPT))
        rig.submit(generate("yours", PROMPT, namespace=Namespace(b"y" * 16)))
        rig.submit(generate("mine too", PROMPT))
        rig.step()
        running = {sequence.request_id for sequence in rig.scheduler.running}
        assert running == {"mine", "yours"}

    def test_a_sequence_that_shares_a_part_waits_only_for_that_part(self) -> None:
        rig = Rig(max_batch_tokens=16, num_blocks=200)
        rig.submit(generate("leader", PROMPT))
        rig.submit(generate("follower", [*PROMPT[:16], *[60, 61] * len(PROMPT)]))
        rig.step()
        assert len(rig.scheduler.running) == 1
        rig.step(2)
        assert len(rig.scheduler.running) == 2
        rig.run()
        assert rig.finished("follower").reused.tokens == 16

    def test_after_the_deadline_a_follower_goes_on_its_own(self) -> None:
        rig = Rig(max_batch_tokens=8, deadline_s=5.0, num_blocks=200)
        rig.submit(generate("other", [50, 51, 52], max_tokens=30))
        rig.submit(generate("leader", [*PROMPT, *PROMPT], max_tokens=1))
        rig.submit(generate("follower", PROMPT, max_tokens=1))
        rig.step()
        [sequence] = rig.scheduler.queue
        path, now = sequence.path, rig.clock()
        assert (
            rig.cache.tree.match(path, sequence.token_ids).found.total * rig.cache.block_size == 4
        )
        sequence_cache = rig.scheduler.sequence_cache
        assert sequence_cache.look_up(sequence, now) is None
        assert sequence_cache.look_up(sequence, now + 4.9) is None
        assert sequence_cache.look_up(sequence, now + 5.0) == 4

    def test_two_that_compute_the_same_at_once_are_both_right(self) -> None:
        rig = Rig(max_batch_tokens=64, deadline_s=0.0, num_blocks=200)
        names = cold_crowd(rig, 3)
        rig.step()
        assert len(rig.scheduler.running) == 2
        rig.run()
        for name in names:
            rig.expect_output(generate(name, PROMPT, max_tokens=2))
        rig.expect_nothing_left()

    def test_when_the_leader_is_cancelled_another_takes_over(self) -> None:
        rig = Rig(max_batch_tokens=8, num_blocks=200)
        names = cold_crowd(rig)
        rig.step(2)
        assert [sequence.request_id for sequence in rig.scheduler.running] == ["r0"]
        rig.link.say(Cancel("r0"))
        rig.step()
        assert [sequence.request_id for sequence in rig.scheduler.running] == ["r1"]
        rig.run()
        for name in names[1:]:
            rig.expect_output(generate(name, PROMPT, max_tokens=2))
        # the tokens computed by the first request stay cached
        assert rig.finished("r1").reused.tokens == 16
        rig.expect_nothing_left()

    def test_when_the_leader_fails_the_others_compute_for_themselves(self) -> None:
        rig = Rig(max_batch_tokens=64, num_blocks=200)
        rig.runner.not_finite = {"r0"}
        names = cold_crowd(rig)
        rig.run()
        assert rig.failed("r0").code == "numeric_failure"
        assert rig.finished("r1").reused.tokens == 0
        for name in names[1:]:
            rig.expect_output(generate(name, PROMPT, max_tokens=2))
        rig.expect_nothing_left()


def test_a_waiting_sequence_has_no_lease() -> None:
    with pytest.raises(LeaseMissing):
        lease_of(waiting("a"))
