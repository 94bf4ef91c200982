"""A match ends at a checkpoint, and the checkpoints that save least are evicted first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from prefix_cache.cache import PrefixCache
from prefix_cache.errors import InvariantBroken, LeaseError
from prefix_cache.eviction.shares import Quota
from prefix_cache.hashing import TokenIds, block_keys
from prefix_cache.leases.lease import Lease
from prefix_cache.namespace import NamespacePath
from prefix_cache.tree.node import Node
from prefix_cache.tree.probe import probe
from tests.prefix_cache.support.scene import path
from tests.prefix_cache.support.states_driver import states_of

SIZE = 4
HERE = path("tenant a")
IDS = np.arange(100, 132, dtype=np.int32)  # eight blocks


class Requests:
    """Requests to a cache with `num_states` state slots, each computed at once."""

    def __init__(self, num_states: int = 32, at: NamespacePath = HERE) -> None:
        self.at = at
        self.cache = PrefixCache(num_blocks=64, block_size=SIZE, num_states=num_states)
        self.now = 0.0

    def open(self, ids: TokenIds, *wanted: int, owner: str = "me") -> Lease:
        self.now += 1.0
        lease = self.cache.acquire(self.at, ids, owner=owner, now=self.now)
        assert lease is not None
        self.cache.states.want(lease, wanted)
        return lease

    def compute(self, lease: Lease, ids: TokenIds) -> None:
        """Compute all tokens, in rows that end where a state is to be kept."""
        states, at = states_of(lease), lease.cached_tokens
        while at < len(ids):
            at = min(states.stop_after(at) or len(ids), len(ids))
            self.cache.states.launched(lease, at, states.next_out())
            keys = block_keys(self.at, ids, SIZE)
            self.cache.commit(lease, ids[:at], at, keys, now=self.now)

    def run(self, ids: TokenIds, *wanted: int, owner: str = "me") -> int:
        """Run a whole request; return its cached tokens."""
        lease = self.open(ids, *wanted, owner=owner)
        self.compute(lease, ids)
        self.cache.release(lease, now=self.now)
        self.cache.check_invariants()
        return lease.cached_tokens

    def usable(self, ids: TokenIds) -> int:
        return self.cache.tree.match(self.at, ids).found.total * SIZE


def node_at(cache: PrefixCache, ids: TokenIds, end: int) -> Node:
    at = cache.tree.walk(HERE, ids[:end])
    assert at.node.end * SIZE == end
    return at.node


def test_a_match_ends_at_the_last_checkpoint() -> None:
    requests = Requests()
    requests.run(IDS[:30], 8, 20)
    assert requests.usable(IDS) == 20
    assert requests.usable(IDS[:19]) == 8
    assert requests.usable(IDS[:7]) == 0
    probed = probe(requests.cache.tree, HERE, IDS)
    assert (probed.found.total * SIZE, probed.partial, probed.matched) == (20, 0, 28)


def test_without_states_a_match_ends_where_the_blocks_end() -> None:
    cache = PrefixCache(num_blocks=64, block_size=SIZE)
    lease = cache.acquire(HERE, IDS, owner="me", now=0.0)
    assert lease is not None
    assert lease.states is None
    cache.commit(lease, IDS, 30, block_keys(HERE, IDS, SIZE), now=0.0)
    assert cache.tree.match(HERE, IDS).found.total == 7


def test_the_end_of_a_request_is_kept() -> None:
    requests = Requests()
    assert requests.run(IDS[:16]) == 0
    assert requests.usable(IDS) == 16
    assert requests.run(IDS[:24]) == 16


def test_a_request_that_ends_within_a_block_leaves_its_last_whole_one() -> None:
    requests = Requests()
    lease = requests.open(IDS[:18])
    states = states_of(lease)
    for end in (14, 15, 16, 17, 18):  # one-token rows
        requests.cache.states.launched(lease, end, states.next_out())
        keys = block_keys(HERE, IDS, SIZE)
        requests.cache.commit(lease, IDS[:end], end, keys, now=0.0)
    requests.cache.release(lease, now=0.0)
    assert requests.usable(IDS) == 16


def test_where_prompts_part_a_state_is_kept_by_the_second() -> None:
    requests = Requests()
    requests.run(IDS)
    other = np.concatenate([IDS[:20], IDS[:8]])
    lease = requests.open(other)
    assert (lease.cached_tokens, states_of(lease).matched) == (0, 20)
    requests.cache.states.want(lease, [states_of(lease).matched])
    requests.compute(lease, other)
    requests.cache.release(lease, now=requests.now)
    assert requests.usable(np.concatenate([IDS[:20], IDS[10:20]])) == 20


@pytest.mark.parametrize(
    ("at", "early"),
    [
        # the state may be read only at the end of the published blocks
        (path("published", "tenant b", length=4), 0),
        (HERE, 8),  # positive control: in its own namespace, a state may be read anywhere
    ],
)
def test_others_blocks_get_no_state_where_a_tenant_stops(at: NamespacePath, early: int) -> None:
    requests = Requests(at=at)
    for ids in (IDS[:30], IDS[:10]):
        requests.run(ids, 8, 16, 20)
    assert requests.usable(IDS[:15]) == early
    assert requests.usable(IDS[:19]) == 16


def test_equal_blocks_get_the_state_of_whoever_computed_them_again() -> None:
    requests = Requests()
    requests.run(IDS)
    node_of = requests.cache.tree.walk(HERE, IDS).node
    lease = requests.open(IDS[:30], 20)
    assert lease.cached_tokens == 0
    requests.compute(lease, IDS[:30])
    assert requests.usable(IDS[:30]) == 20
    assert node_of.checkpoint is not None  # the lower part of the split node keeps its checkpoint
    requests.cache.check_invariants()


@pytest.mark.parametrize(
    ("num_states", "running", "slots"), [(1 + 7, 3, [3, 2, 2]), (1 + 6, 3, [])]
)
def test_a_sequence_has_a_third_slot_while_sequences_have_less_than_half(
    num_states: int, running: int, slots: list[int]
) -> None:
    requests = Requests(num_states=num_states)
    leases = [
        requests.cache.acquire(path(str(at)), IDS[:8], owner="me", now=1.0) for at in range(running)
    ]
    assert [len(states_of(one).owned) for one in leases if one is not None][: len(slots)] == slots
    assert (leases[-1] is None) == (not slots)


@pytest.mark.parametrize(("num_states", "found"), [(1 + 6, 16), (1 + 4, 0)])
def test_the_kept_state_gives_way_to_the_next_row_where_slots_are_few(
    num_states: int, found: int
) -> None:
    requests = Requests(num_states=num_states)
    lease = requests.open(IDS[:20])
    requests.compute(lease, IDS[:16])  # keeps the state at the end of a block
    for end in (18, 19):
        requests.cache.states.launched(lease, end, states_of(lease).next_out())
    requests.cache.release(lease, now=requests.now)
    requests.cache.check_invariants()
    assert requests.usable(IDS[:20]) == found


def test_what_a_lease_may_read_is_not_evicted() -> None:
    requests = Requests(num_states=1 + 3 + 1)
    requests.run(IDS[:16])
    lease = requests.open(IDS[:24])
    assert lease.cached_tokens == 16
    taken = requests.cache.acquire(path("b"), IDS[:8], owner="me", now=9.0)
    assert taken is None  # only the checkpoint that the lease may read could be evicted
    requests.cache.release(lease, now=9.0)
    assert requests.cache.acquire(path("b"), IDS[:8], owner="me", now=9.0) is not None


def test_the_checkpoint_that_saves_least_goes_first() -> None:
    requests = Requests(num_states=1 + 3 + 2)
    requests.run(IDS[:24], 20, 24)  # the second checkpoint saves one block, the first five
    requests.open(IDS[:8] + 500)
    assert requests.usable(IDS) == 24
    requests.cache.checkpoints.take(1, "me")
    assert requests.usable(IDS) == 20


def test_a_checkpoint_saves_more_once_the_one_before_it_is_gone() -> None:
    requests = Requests(num_states=1 + 3 + 3)
    requests.run(IDS[:24], 8, 20, 24)  # the checkpoints save two, three and one blocks
    device = requests.cache.checkpoints.device
    worth = [
        device.policy_of("me").priority(node_at(requests.cache, IDS, end)) for end in (8, 20, 24)
    ]
    assert worth == [2.0, 3.0, 1.0]
    requests.cache.checkpoints.drop(node_at(requests.cache, IDS, 8))
    priority = requests.cache.checkpoints.device.policy_of("me").priority
    assert priority(node_at(requests.cache, IDS, 20)) == 5.0


def worth_at(requests: Requests, end: int) -> float:
    policy = requests.cache.checkpoints.device.policy_of("me")
    return policy.priority(node_at(requests.cache, IDS, end))


def test_a_checkpoint_is_worth_less_once_its_conversation_has_gone_on() -> None:
    requests = Requests()
    requests.run(IDS[:16], 16)
    # starts from this state, and continues with other tokens
    requests.run(np.concatenate([IDS[:16], IDS[:8]]), 16)
    assert worth_at(requests, 16) == 4 / 8
    requests.run(
        IDS[:24], 24
    )  # a second request starts from this state, so more requests are expected to
    assert worth_at(requests, 16) == 4


def test_a_checkpoint_keeps_its_worth_while_nothing_later_is_kept() -> None:
    requests = Requests()
    requests.run(IDS[:16], 16)
    lease = requests.open(IDS[:24])
    assert lease.cached_tokens == 16
    requests.cache.discard(lease, now=requests.now)
    assert worth_at(requests, 16) == 4


def test_a_checkpoint_where_prompts_part_is_worth_less_until_a_third_starts_there() -> None:
    requests = Requests()
    requests.run(IDS[:28])
    lease = requests.open(other := np.concatenate([IDS[:16], IDS[:8]]))
    requests.cache.states.want(lease, [states_of(lease).matched])
    requests.compute(lease, other)
    requests.cache.release(lease, now=requests.now)
    assert worth_at(requests, 16) == 4 / 8
    requests.run(np.concatenate([IDS[:16], IDS[20:28]]))
    assert worth_at(requests, 16) == 4


def test_marked_prefixes_lose_their_state_last() -> None:
    requests = Requests(num_states=1 + 3 + 2)
    lease = requests.open(IDS[:9], 8)
    requests.compute(lease, IDS[:9])
    requests.cache.retain(lease, IDS[:8], 100.0, now=requests.now)
    requests.cache.release(lease, now=requests.now)
    requests.run(IDS[:28] + 500)  # would save more than the marked prefix, and is newer
    requests.open(IDS[:8] + 900)
    assert requests.usable(IDS[:9]) == 8
    assert requests.usable(IDS[:28] + 500) == 28
    requests.cache.checkpoints.take(1, "me")
    assert requests.usable(IDS[:9]) == 8
    assert requests.usable(IDS[:28] + 500) == 0


def test_an_owner_over_its_share_evicts_its_own() -> None:
    requests = Requests(num_states=1 + 10)
    requests.cache.quotas.set("me", Quota(ceiling=0.2))
    requests.run(IDS[:16] + 300, owner="ben")
    for at in range(4):
        requests.run(IDS[:16] + 1000 * at + 1000)
    assert requests.cache.checkpoints.device.usage.held == {"me": 2, "ben": 1}
    assert requests.usable(IDS[:16] + 300) == 16


def test_partitions_keep_others_checkpoints_apart() -> None:
    requests = Requests(num_states=1 + 12)
    requests.cache.quotas.partition({"me": Quota(), "ben": Quota()})
    requests.run(IDS[:16] + 300, owner="ben")
    for at in range(5):
        requests.run(IDS[:16] + 1000 * at + 1000)
    assert requests.cache.checkpoints.device.usage.held == {"me": 3, "ben": 1}


def test_partitioned_sequences_have_at_most_half_and_answers_are_of_their_owners_part() -> None:
    requests = Requests(num_states=1 + 12)
    requests.cache.quotas.partition({"me": Quota(), "ben": Quota()})
    device = requests.cache.checkpoints.device
    leases = [requests.open(IDS[:16] + 1000 * at) for at in range(3)]
    assert [len(states_of(one).owned) for one in leases] == [3, 3, 3]
    assert (device.num_held, requests.cache.checkpoints.num_leased) == (3, 6)
    assert requests.cache.acquire(HERE, IDS + 5000, owner="ben", now=9.0) is None
    requests.cache.check_invariants()
    for at, lease in enumerate(leases):
        requests.compute(lease, IDS[:16] + 1000 * at)
        requests.cache.release(lease, now=9.0)
    assert (device.num_held, device.usage.held) == (0, {"me": 3})
    lease = requests.open(IDS[:16] + 4000)  # evicts the owner's oldest checkpoint
    assert (len(states_of(lease).owned), device.usage.held) == (3, {"me": 3})
    requests.cache.check_invariants()


def test_blocks_that_leave_the_tree_take_their_checkpoint() -> None:
    requests = Requests()
    requests.run(IDS, 8)
    requests.cache.flush()
    requests.cache.check_invariants()
    assert requests.cache.checkpoints.is_empty


def test_a_flushed_checkpoint_stays_until_its_reader_is_gone() -> None:
    requests = Requests()
    requests.run(IDS[:16])
    lease = requests.open(IDS[:20])
    slot = states_of(lease).at.slot
    requests.cache.flush()
    assert slot not in requests.cache.checkpoints.device.allocator.free_ids()
    assert requests.usable(IDS) == 0
    requests.cache.release(lease, now=9.0)
    requests.cache.check_invariants()
    assert slot in requests.cache.checkpoints.device.allocator.free_ids()


def test_a_discarded_lease_takes_back_its_checkpoints_on_others_blocks() -> None:
    requests = Requests()
    requests.run(IDS)
    lease = requests.open(IDS[:30], 20)
    requests.compute(lease, IDS[:30])
    assert requests.usable(IDS) == 32
    requests.cache.discard(lease, now=9.0)
    requests.cache.check_invariants()
    assert requests.usable(IDS) == 0


def test_a_pinned_prefix_needs_its_state_and_holds_it() -> None:
    requests = Requests(num_states=1 + 6)
    requests.run(IDS[:20], 8)
    assert requests.cache.pin(HERE, IDS[:12], owner="published", now=1.0) is None
    pin = requests.cache.pin(HERE, IDS[:8], owner="published", now=1.0)
    assert pin is not None
    requests.open(IDS[:8] + 900)
    requests.cache.checkpoints.take(2, "me")
    assert requests.usable(IDS) == 8
    requests.cache.release(pin, now=2.0)
    requests.cache.checkpoints.take(1, "me")
    assert requests.usable(IDS) == 0


def test_a_row_decided_too_early_is_refused() -> None:
    requests = Requests()
    lease = requests.open(IDS)
    states = states_of(lease)
    for end in (4, 8, 12):
        requests.cache.states.launched(lease, end, states.next_out())
    with pytest.raises(LeaseError):
        states.next_out()


def test_too_few_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        PrefixCache(num_blocks=8, block_size=4, num_states=3)


Damage = Callable[[Requests, Node, Lease], object]
DAMAGES: dict[str, Damage] = {
    "a slot is lost": lambda r, node, lease: r.cache.checkpoints.device.allocator.allocate(1),
    "a slot is in two places": lambda r, node, lease: states_of(lease).owned.append(
        (node.checkpoint and node.checkpoint.device_slot) or 0
    ),
    "a checkpoint is not counted": lambda r, node, lease: setattr(
        r.cache.checkpoints.device, "num_kept", 0
    ),
    "a checkpoint is not charged": lambda r, node, lease: r.cache.checkpoints.device.usage.charge(
        "me", 1
    ),
    "a reader is not counted": lambda r, node, lease: setattr(node.checkpoint, "readers", 0),
    "a candidate is read": lambda r, node, lease: r.cache.checkpoints.device.candidates.add(node),
    "two versions in one slot": lambda r, node, lease: states_of(lease).coming.extend(
        [states_of(lease).at._replace(slot=states_of(lease).owned[0])] * 2
    ),
    "a state that is not there": lambda r, node, lease: setattr(
        states_of(lease), "at", states_of(lease).at._replace(slot=31)
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_state_breaks_an_invariant(damage: Damage) -> None:
    requests = Requests()
    requests.run(IDS[:16])
    lease = requests.open(IDS[:24])
    node = node_at(requests.cache, IDS, 16)
    requests.cache.check_invariants()
    damage(requests, node, lease)
    with pytest.raises(InvariantBroken):
        requests.cache.check_invariants()
