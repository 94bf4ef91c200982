"""The report on a flow's flush counts erased blocks by tier, and says when all are erased."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.link.erasure import Erasure, TierErasure
from engine.link.query_messages import Flush, Flushed
from prefix_cache.tiers.tier_pools import Tiers
from storage.disk.stats import DiskProcessStats, DiskState
from storage.move import BlockRecord, Tier
from tests.doubles.engine.fake_runner import VOCAB_SIZE
from tests.engine.rigs.rig import CLIENT, OTHER, Rig, generate

PROMPT = list(range(40))
BOTH = Tiers(host_blocks=16, disk_blocks=64)


class SlowDisk:
    """A disk that forgets blocks when a test says so."""

    generation = 0
    state = DiskState.UP
    stats = DiskProcessStats()
    encrypts = True

    def __init__(self) -> None:
        self.told: list[str] = []
        self.forgetting: set[str] = set()
        self.noted: list[str] = []

    def scan(self) -> Iterable[tuple[int, BlockRecord]]:
        return ()

    def erase_unlisted(self) -> None:
        pass

    def forget_owner(self, owner: str) -> None:
        self.told.append(owner)
        self.forgetting.add(owner)

    def is_forgetting(self, owner: str) -> bool:
        return owner in self.forgetting

    def note_flushes(self, flushes: Sequence[str]) -> None:
        self.noted += flushes

    def done_flushes(self) -> Sequence[str]:
        return ["before"]


def flushed(rig: Rig, flush_id: str = "fl_1", flow: str | None = "flow") -> Flushed:
    rig.link.say(Flush(query_id="f", flow=flow, flush_id=flush_id))
    rig.step()
    return [reply for reply in rig.link.sent[CLIENT] if isinstance(reply, Flushed)][-1]


def erased(rig: Rig, flush_id: str = "fl_1") -> Erasure:
    found = flushed(rig, flush_id).erasure
    assert found is not None
    return found


def test_copies_are_counted_in_every_tier_that_has_them() -> None:
    rig = Rig(num_blocks=16, max_batch_tokens=64, tiers=BOTH, disk=SlowDisk())
    for flow, start in (("flow", 0), ("other", 20)):
        for name in ("first", "second"):
            prompt = PROMPT[start:]
            rig.submit(generate(f"{flow} {name}", prompt, max_tokens=1, flow=flow))
            rig.run()
    rig.push_out()
    rig.settle_copies()
    usages = rig.cache.capacity.quota_usages
    held = {tier: usages[tier].held["flow"] for tier in Tier}
    assert sum(held.values()) > 9
    tiers = erased(rig).tiers
    assert tiers == tuple(
        TierErasure(tier=tier.value, blocks=blocks, num_bytes=64 * blocks)
        for tier, blocks in held.items()
    )
    rig.settle_copies()
    assert not any(usages[tier].held["flow"] for tier in Tier)
    assert any(usages[tier].held["other"] for tier in Tier), "the control"
    assert erased(rig).tiers == tiers, "as it was then"


def test_states_are_counted_apart() -> None:
    rig = Rig(num_blocks=64, num_states=24, max_batch_tokens=64)
    for name in ("first", "second"):
        rig.submit(generate(name, PROMPT, max_tokens=1))
        rig.run()
    kept = rig.cache.checkpoints.device.num_kept
    assert kept > 0
    [device] = erased(rig).tiers or ()
    assert (device.tier, device.states) == ("device", kept)
    assert device.num_bytes == 64 * device.blocks + 64 * kept


def test_it_is_over_once_the_disk_has_forgotten_and_nothing_runs() -> None:
    disk = SlowDisk()
    rig = Rig(disk=disk, tiers=BOTH)
    rig.submit(generate("a", PROMPT, max_tokens=8))
    rig.step(2)
    found = erased(rig)
    assert (found.running, found.disk, found.is_over) == (1, "under way", False)
    rig.run()
    disk.forgetting.clear()
    found = erased(rig)
    assert (found.running, found.disk, found.is_over) == (0, "key destroyed", True)
    disk.encrypts = False
    assert erased(rig).disk == "records erased"


def test_an_owner_is_forgotten_again_where_a_copy_was_under_way() -> None:
    """The copy may have written a record under a new key."""
    disk = SlowDisk()
    rig = Rig(num_blocks=16, max_batch_tokens=64, tiers=Tiers(disk_blocks=64), disk=disk)
    for name in ("first", "second"):
        rig.submit(generate(name, PROMPT, max_tokens=1))
        rig.run()
    rig.mover.held.add(Tier.DISK)
    long = [(17 + i * i) % VOCAB_SIZE for i in range(63)]
    rig.submit(generate("pushes out", long, flow="other", namespace=OTHER, max_tokens=1))
    rig.step(3)
    assert rig.mover.pending
    assert erased(rig).disk == "under way"
    disk.forgetting.clear()  # the blocks that the disk had at the flush
    assert erased(rig).disk == "under way"
    rig.mover.held.clear()
    rig.settle_copies()
    rig.step()
    assert disk.told == ["flow", "flow"]
    disk.forgetting.clear()
    assert erased(rig).disk == "key destroyed"


def test_what_was_flushed_before_the_start_is_not_counted() -> None:
    rig = Rig(disk=SlowDisk(), tiers=BOTH)
    assert erased(rig, "before").tiers is None
    assert flushed(rig, "fl_2", None).erasure is None, "no flow was flushed"
    assert flushed(rig, "").erasure is None, "by a flush that is never repeated"


def test_without_a_disk_there_is_no_key() -> None:
    assert erased(Rig()).disk == "none"
