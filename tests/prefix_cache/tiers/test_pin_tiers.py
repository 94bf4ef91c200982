"""A pin of another owner's blocks charges the copies in all tiers to the pin's owner."""

from __future__ import annotations

import pytest

from prefix_cache.eviction.shares import PUBLISHED
from prefix_cache.hashing import TokenIds
from prefix_cache.leases.lease import Lease
from prefix_cache.tiers.eviction_log import Reason
from prefix_cache.tiers.in_flight import CopyOutcome
from storage.move import Tier
from tests.prefix_cache.support.scene import path, tokens
from tests.prefix_cache.support.tiers_scene import TierScene

A = path("a")
PROMPT = tokens(*range(1, 10))  # two blocks of four tokens, and a last token to compute
OTHER = tokens(*range(50, 62))  # fills the device


def lease(scene: TierScene, ids: TokenIds) -> Lease:
    """Return a lease of owner "tenant", once there is room and its blocks are loaded."""
    found: Lease | None = None
    for _ in range(6):
        found = found or scene.acquire_loading(A, ids, None, "tenant")
        scene.end_copies()
    assert found is not None
    assert found.ready
    return found


def on_both(scene: TierScene) -> None:
    """Put PROMPT's two blocks, owned by the tenant, on the device and in the lower tiers."""
    for _ in range(2):
        scene.run(A, PROMPT, "tenant")
    for ids in (OTHER, PROMPT):
        scene.release(lease(scene, ids))
    assert scene.cache.tree.match(A, PROMPT).found.device == 2


def pin(scene: TierScene) -> Lease | None:
    return scene.cache.pin(A, PROMPT[:8], owner=PUBLISHED, now=scene.tick())


@pytest.mark.parametrize("tiers", [(4, 0), (0, 8), (4, 8)])
def test_pinning_charges_the_copies_in_lower_tiers_too(tiers: tuple[int, int]) -> None:
    """Charge the copies in lower tiers to the pin too: they would else be charged to the tenant,
    beyond its ceiling.
    """
    scene = TierScene(3, host=tiers[0], disk=tiers[1])
    on_both(scene)
    pinned = pin(scene)
    assert pinned is not None
    scene.cache.check_invariants()
    scene.release(pinned)
    scene.cache.flush()
    scene.cache.check_invariants()
    quota_usages = scene.cache.capacity.quota_usages.values()
    assert [
        held for quota_usage in quota_usages for held in quota_usage.held.values() if held
    ] == []


def test_a_pin_while_its_blocks_are_copied_down_leaves_the_books_right() -> None:
    scene = TierScene(3, host=4)
    scene.run(A, PROMPT, "tenant")
    # refused, so the prompt's blocks are being offloaded
    assert scene.acquire_loading(A, OTHER, None) is None
    scene.take_plan()
    assert scene.under_way
    for _ in range(2):
        pinned = pin(scene)  # succeeds at once, or after the blocks are copied
        scene.cache.check_invariants()
        if pinned is not None:
            break
        scene.complete([(move, CopyOutcome.DONE) for move in list(scene.under_way)])
        scene.release(lease(scene, PROMPT))
    assert pinned is not None
    scene.end_copies()
    scene.cache.check_invariants()
    assert scene.cache.capacity.owners()[PUBLISHED].blocks_held == 2


def test_a_prefix_that_was_pinned_can_be_read_from_disk_afterwards() -> None:
    """Read a pinned prefix from the disk.

    Each disk record is sealed for one owner. Pinning changes the owner, so the records of the
    earlier owner go, and the blocks are written again.
    """
    scene = TierScene(3, disk=8)
    on_both(scene)
    eviction_log = scene.cache.eviction_log
    before = eviction_log.by_reason(Tier.DISK)
    pinned = pin(scene)
    assert pinned is not None
    assert before == {}
    assert eviction_log.by_reason(Tier.DISK) == {Reason.DOUBLE: 2}, "no block has left the cache"
    scene.release(pinned)
    scene.release(lease(scene, OTHER))
    again = lease(scene, PROMPT)  # the scene's disk checks the owners of records
    assert again.cached_tokens == 8
    scene.cache.check_invariants()


@pytest.mark.parametrize("tiers", [(4, 0), (0, 8), (4, 8)])
def test_an_owner_that_pins_its_own_blocks_is_charged_once(tiers: tuple[int, int]) -> None:
    scene = TierScene(3, host=tiers[0], disk=tiers[1])
    on_both(scene)
    pinned = scene.cache.pin(A, PROMPT[:8], owner="tenant", now=scene.tick())
    assert pinned is not None
    scene.cache.check_invariants()
    assert scene.cache.capacity.owners()["tenant"].blocks_held == 2
    held = [
        scene.cache.capacity.quota_usages[tier].held["tenant"] for tier in scene.tiers.present()
    ]
    assert held[0] == 2
    assert sum(held) > 2
