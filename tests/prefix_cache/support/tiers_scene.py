"""A scene with simulated memory in all three tiers, and copies that take time.

A copy reads and writes during its whole time. Its source must be unchanged at the end, and no other
copy may write its target meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prefix_cache.cache import PrefixCache
from prefix_cache.eviction.eviction_policy import EvictionPolicy
from prefix_cache.hashing import Digest, TokenIds, xxh3_128_digest
from prefix_cache.leases.lease import Lease
from prefix_cache.namespace import NamespacePath
from prefix_cache.tiers.in_flight import CopyOutcome
from prefix_cache.tiers.tier_pools import Tiers
from prefix_cache.tree.node import Node
from prefix_cache.tree.residency import BIT, MOVING
from storage.move import BlockRecord, Move, Plan, Tier
from tests.prefix_cache.support.scene import Scene

Content = list[int | None]


@dataclass(frozen=True, slots=True)
class Copy:
    """A pending copy: its slots, and the source's contents when the copy began."""

    source: Content
    before: Content
    target: Content
    record: BlockRecord | None


class TierScene(Scene):
    """A scene that drives a PrefixCache with tiers; `complete` ends copies."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 4,
        *,
        host: int = 0,
        disk: int = 0,
        max_disk_writes: int = 64,
        ahead: int = 0,
        policy: EvictionPolicy | None = None,
        digest: Digest = xxh3_128_digest,
    ) -> None:
        super().__init__(num_blocks, block_size, digest)
        self.tiers = Tiers(host, disk, max_disk_writes, ahead)
        self.policy = policy
        self.places: dict[Tier, list[Content]] = {
            Tier.DEVICE: self.memory,
            Tier.HOST: [self._nothing() for _ in range(host)],
            Tier.DISK: [self._nothing() for _ in range(disk)],
        }
        self.records: dict[int, BlockRecord] = {}  # the disk's records by slot
        self.under_way: dict[Move, Copy] = {}
        self.doomed: set[Move] = set()  # copies that can only end as lost
        self.spoilt: set[tuple[Tier, int]] = set()  # slots found to be damaged
        self._was_emptied = False  # whether the disk was emptied since the last plan
        self.cache = self._new_cache()

    def end_copies(self) -> None:
        """End all planned or pending copies successfully."""
        self.take_plan()
        self.complete([(move, CopyOutcome.DONE) for move in list(self.under_way)])

    def _new_cache(self) -> PrefixCache:
        return PrefixCache(
            num_blocks=len(self.memory),
            block_size=self.block_size,
            digest=self.digest,
            tiers=self.tiers,
            policy=self.policy,
        )

    def _nothing(self) -> Content:
        return [None] * self.block_size

    def acquire_loading(
        self, where: NamespacePath, ids: TokenIds, load_blocks: int | None, owner: str = "me"
    ) -> Lease | None:
        lease = self.cache.acquire(
            where, ids, owner=owner, now=self.tick(), load_blocks=load_blocks
        )
        if lease is not None:
            self._unmoved.extend(lease.moves)
        return lease

    def take_plan(self) -> Plan:
        """Begin the plan's copies, after the copies within the device have been made."""
        self.move()
        plan = self.cache.moves.take_plan()
        self.doomed &= self.under_way.keys()
        reads = {m.source for m in self.under_way if m.source_tier is Tier.DISK}
        writes = {m.target for m in self.under_way if m.target_tier is Tier.DISK}
        for slot in plan.erase:
            assert slot not in reads | writes
            self.records.pop(slot, None)
        for move in plan.moves:
            record = plan.records.get(move)
            assert (record is None) == (Tier.DISK not in (move.source_tier, move.target_tier))
            if move.source_tier is Tier.DISK:
                assert record is not None
                stored = self.records.get(move.source)
                if stored is None:  # planned before the disk was emptied
                    assert self._was_emptied
                    self.doomed.add(move)
                else:
                    assert _identity(stored) == _identity(record)
            garbage = self._nothing()
            self.spoilt.discard((move.target_tier, move.target))
            self.places[move.target_tier][move.target] = garbage
            if (move.source_tier, move.source) in self.spoilt:
                self.doomed.add(move)
            source = self.places[move.source_tier][move.source]
            self.under_way[move] = Copy(source, list(source), garbage, record)
            if move.target_tier is Tier.DISK:
                self.records.pop(move.target, None)
        self._was_emptied = False
        return plan

    def execute(self, move: Move) -> None:
        """Complete a copy."""
        copy = self.under_way[move]
        assert self.places[move.source_tier][move.source] is copy.source
        assert copy.source == copy.before, "what was being read has been written to"
        assert self.places[move.target_tier][move.target] is copy.target
        assert copy.target == self._nothing(), "what was being written has been written to"
        self.places[move.target_tier][move.target] = list(copy.source)
        if move.target_tier is Tier.DISK:
            assert copy.record is not None
            self.records[move.target] = copy.record

    def complete(self, outcomes: Iterable[tuple[Move, CopyOutcome]]) -> None:
        """End these copies; the source of a lost copy is damaged."""
        by_outcome: dict[CopyOutcome, list[Move]] = {outcome: [] for outcome in CopyOutcome}
        for move, drawn in outcomes:
            outcome = CopyOutcome.LOST if move in self.doomed else drawn
            if outcome is CopyOutcome.DONE:
                self.execute(move)
            del self.under_way[move]
            by_outcome[outcome].append(move)
        for move in by_outcome[CopyOutcome.LOST]:
            self.places[move.source_tier][move.source] = self._nothing()
            self.spoilt.add((move.source_tier, move.source))
        self.cache.moves.complete(*by_outcome.values())

    def copy_all(self) -> int:
        """Take plans and end all copies successfully until there are none; return their number."""
        copies = 0
        while plan := self.take_plan():
            copies += len(plan.moves)
            if not self.under_way:
                break
            self.complete([(move, CopyOutcome.DONE) for move in self.under_way])
        return copies

    def restart(self, found: list[tuple[int, BlockRecord]] | None = None) -> int:
        """Start a new process: device and host are empty, the disk is unchanged."""
        self.under_way.clear()
        self._unmoved.clear()
        self.spoilt = {place for place in self.spoilt if place[0] is Tier.DISK}
        for tier in (Tier.DEVICE, Tier.HOST):
            self.places[tier][:] = [self._nothing() for _ in self.places[tier]]
        self.cache = self._new_cache()
        stored = list(self.records.items()) if found is None else found
        return self.cache.restart.restore(stored, now=self.tick())

    def empty_disk(self) -> int:
        """Replace the disk's file by an empty one. Pending copies to the old file may still end."""
        self._was_emptied = True
        self.spoilt = {place for place in self.spoilt if place[0] is not Tier.DISK}
        self.records.clear()
        fresh = [self._nothing() for _ in self.places[Tier.DISK]]
        for move, copy in self.under_way.items():
            if move.target_tier is Tier.DISK:
                fresh[move.target] = copy.target
        for move in list(self.under_way):
            if move.source_tier is Tier.DISK:  # the block was read before the change
                fresh[move.source] = self.places[Tier.DISK][move.source]
        self.places[Tier.DISK][:] = fresh
        return self.cache.moves.forget_disk()

    def check_contents(self) -> None:
        """Check every copy of every block of the tree against its tokens and namespaces."""
        self.move()
        waiting: list[tuple[Node, int]] = [
            (child, 0) for child in self.cache.tree.root.children.values()
        ]
        while waiting:
            node, past = waiting.pop()
            states = node.edge.states.tolist()
            for index in range(len(node.edge)):
                expected = []
                for token in node.edge.block(index):
                    past = hash((past, int(token), node.namespace))
                    expected.append(past)
                for tier in Tier:
                    if states[index] & BIT[tier]:
                        slot = int(node.edge.slots(tier)[index])
                        found = tier is Tier.DISK or states[index] & MOVING
                        if (tier, slot) in self.spoilt and found:
                            continue  # a damaged record: reading it reports a loss
                        assert self.places[tier][slot] == expected, (tier, slot)
                        if tier is Tier.DISK:
                            assert self.records[slot].key == node.edge.key(index)
            waiting += [(child, past) for child in node.children.values()]


def _identity(record: BlockRecord) -> tuple[bytes, bytes, bytes, str, bytes]:
    return record.key, record.parent_key, record.namespace, record.owner, record.token_ids
