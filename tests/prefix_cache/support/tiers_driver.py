"""Random operations on a cache with all tiers, with checks of the blocks' contents.

The times, order and outcomes of copies are random too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

import numpy as np

from prefix_cache.hashing import TokenIds
from prefix_cache.leases.lease import Lease
from prefix_cache.namespace import NamespacePath
from prefix_cache.tiers.in_flight import CopyOutcome
from prefix_cache.tiers.pruning import Pruning
from storage.move import Move, Tier
from tests.prefix_cache.support.driver import OWNERS, PATHS
from tests.prefix_cache.support.followed import FollowedPrompts
from tests.prefix_cache.support.scene import finished, namespace
from tests.prefix_cache.support.tiers_scene import TierScene

MOST_RUNNING = 3


@dataclass(eq=False)
class Sequence:
    """A sequence that runs, or waits for its prefix."""

    path: NamespacePath
    ids: TokenIds
    lease: Lease
    computed: int
    checked: bool = False


class TiersDriver:
    """A driver of random operations; `check_every` is the number of operations between complete
    checks.
    """

    def __init__(
        self,
        seed: int,
        scene: TierScene,
        *,
        max_tokens: int,
        check_every: int = 1,
        bad: float = 0.15,
        alphabet: int = 2,
        marks: float = 0.0,
    ) -> None:
        """Make a scene. `marks` is the frequency of marks; all other frequencies add up to about
        100.
        """
        self.random = Random(seed)
        self.scene = scene
        self.max_tokens = max_tokens
        self.check_every = check_every
        self.bad = bad  # share of copies that fail
        self.alphabet = alphabet
        self.running: list[Sequence] = []
        self.seen: Counter[str] = Counter()
        self.history: list[tuple[NamespacePath, TokenIds]] = []
        self.released: set[Move] = set()
        self.prunings: list[Pruning] = []
        self.waiting = FollowedPrompts(Random(seed))
        self._acts = {
            self.acquire: 24,
            self.advance: 30,
            self.end: 10,
            self.take_plan: 14,
            self.complete: 22,
            self.release_early: 10,
            self.discard: 0.5,
            self.flush: 0.1,
            self.prune: 2,
            self.warm: 0.5,
            self.save: 1,
            self.lose_disk: 0.05,
            self.restart: 0.05,
        }
        if marks:
            self._acts[self.retain] = marks

    def run(self, operations: int) -> None:
        self.act(operations)
        self.finish()

    def act(self, operations: int) -> None:
        acts, weights = list(self._acts), list(self._acts.values())
        for count in range(operations):
            self.random.choices(acts, weights)[0]()
            if count % self.check_every == 0:
                self.scene.cache.check_invariants()
                self.waiting.check(self.scene.cache)
            if count % (16 * self.check_every) == 0:
                self.scene.check_contents()

    def draw(self) -> tuple[NamespacePath, TokenIds]:
        length = self.random.randint(1, self.max_tokens)
        ids = np.array([self.random.randrange(self.alphabet) for _ in range(length)], np.int32)
        # repeats earlier prompts, so that prefixes are found again
        if self.history and self.random.random() < 0.8:
            path, other = self.random.choice(self.history)
            return path, np.concatenate([other, ids])[: self.max_tokens]
        return self.random.choice(PATHS), ids

    def acquire(self) -> None:
        if len(self.running) >= MOST_RUNNING:
            self.end()
            return
        where, ids = self.draw()
        loads = self.random.choice((None, None, None, 0, 1, 3))
        self.waiting.add(self.scene.cache, where, ids)
        found = self.scene.cache.tree.match(where, ids[:-1]).found
        matched = self.scene.matches(where, ids[:-1]) // self.scene.block_size
        assert found.total == matched
        lease = self.scene.acquire_loading(where, ids, loads, self.random.choice(OWNERS))
        if lease is None:
            self.seen["refused"] += 1
            return
        assert lease.num_shared <= matched
        if loads is not None:
            assert lease.num_shared <= found.device + found.coming + loads
        self.seen["loading"] += not lease.ready
        self.seen["hits"] += lease.cached_tokens > 0
        self.history = [*self.history[-12:], (where, ids)]
        self.running.append(Sequence(where, ids, lease, lease.cached_tokens))

    def advance(self) -> None:
        if not self.running:
            return
        one = self.random.choice(self.running)
        if one.lease.failed:
            assert not one.lease.ready
            self.seen["failed"] += 1
            self._end(one)
        elif not one.lease.ready:
            self.seen["waited"] += 1
        elif one.computed < len(one.ids):
            self._keep_promises()
            end = one.computed + self.random.randint(1, len(one.ids) - one.computed)
            self.scene.compute(one.lease, one.ids, one.computed, end)
            one.computed = end
            self.scene.commit(one.lease, one.ids, end)
        elif not self._generate(one):
            self._end(one)

    def _generate(self, one: Sequence) -> bool:
        if len(one.ids) >= 2 * self.max_tokens:
            return False
        more = np.array([self.random.randrange(self.alphabet) for _ in range(3)], np.int32)
        total = len(one.ids) + len(more)
        if not self.scene.cache.extend(one.lease, total, now=self.scene.tick()):
            self.seen["not extended"] += 1
            return False
        one.ids = np.concatenate([one.ids, more])
        return True

    def end(self) -> None:
        if self.running:
            self._end(self.random.choice(self.running))

    def _end(self, one: Sequence) -> None:
        self._check(one)
        self.running.remove(one)
        self.scene.release(one.lease)

    def discard(self) -> None:
        if self.running:
            one = self.running.pop(self.random.randrange(len(self.running)))
            self._check(one)
            self.scene.discard(one.lease)

    def _check(self, one: Sequence) -> None:
        """Check that a sequence's cached and computed contents are right."""
        if one.lease.ready:
            self._keep_promises()
            self.scene.move()
            expected = self.scene.kv(one.path, one.ids)[: one.computed]
            assert self.scene.read(one.lease, one.computed) == expected

    def flush(self) -> None:
        names = ("pub", "group", "tenant a", "tenant b")
        where = namespace(self.random.choice(names)) if self.random.random() < 0.6 else None
        owner = self.random.choice(OWNERS) if self.random.random() < 0.6 else None
        namespaces = None if where is None else (where,)
        self.prunings.append(self.scene.cache.pruning(namespaces, owner))
        if self.random.random() < 0.5:
            self.seen["flushed"] += self.prunings.pop().finish()

    def prune(self) -> None:
        for pruning in self.prunings[:1]:
            pruning.advance(self.random.randint(1, 4))
            if pruning.is_over:
                self.seen["pruned"] += pruning.blocks
                self.prunings.remove(pruning)

    def retain(self) -> None:
        """Mark part of a running prompt, or forget a marked prefix."""
        now = self.scene.tick()
        if self.random.random() < 0.2:
            owner = self.random.choice(OWNERS)
            for prefix in self.scene.cache.retained.listed(owner, now=now)[:1]:
                pruning = self.scene.cache.retained.forget(owner, prefix.prefix_id, now=now)
                blocks = finished(pruning)
                self.seen["forgotten"] += blocks or 0
        elif self.running:
            one = self.random.choice(self.running)
            marked = one.ids[: self.random.randint(1, len(one.ids))]
            self.scene.cache.retain(one.lease, marked, self.random.randint(5, 200), now=now)
            self.seen["retained"] += 1

    def take_plan(self) -> None:
        plan = self.scene.take_plan()
        self.seen["moves"] += len(plan.moves)
        self.seen["erased"] += len(plan.erase)

    def release_early(self) -> None:
        """Release some loads before they end: they will succeed, and readers wait for them."""
        up = (Tier.HOST, Tier.DEVICE)
        moves = [
            move
            for move in self.scene.under_way
            if (move.source_tier, move.target_tier) == up and move not in self.scene.doomed
        ]
        chosen = moves[self.random.randint(0, len(moves)) :]
        waiting = [one.lease for one in self.running if not one.lease.ready]
        self.scene.cache.moves.release_early(chosen)
        self.released.update(chosen)
        self.seen["promised"] += sum(lease.ready for lease in waiting)

    def _keep_promises(self) -> None:
        """Wait for the loads that were released early, as a step does before it reads."""
        kept = [move for move in self.scene.under_way if move in self.released]
        self.scene.complete([(move, CopyOutcome.DONE) for move in kept])
        self.released.clear()

    def complete(self) -> None:
        moves = list(self.scene.under_way)
        self.random.shuffle(moves)
        chosen = moves[: self.random.randint(0, len(moves))]
        self.scene.complete([(move, self._outcome(move)) for move in chosen])
        self.released &= self.scene.under_way.keys()
        for one in self.running:
            if one.lease.ready and not one.checked:
                one.checked = True
                self._check(one)

    def _outcome(self, move: Move) -> CopyOutcome:
        if self.random.random() >= self.bad or move in self.released:
            return CopyOutcome.DONE
        outcome = CopyOutcome.FAILED
        if move.source_tier is not Tier.DEVICE and self.random.random() < 0.5:
            outcome = CopyOutcome.LOST
        in_flight_bit = f"{outcome.value} {move.source_tier.value} to {move.target_tier.value}"
        self.seen[in_flight_bit] += 1
        return outcome

    def warm(self) -> None:
        self.seen["warmed"] += self.scene.cache.restart.hottest(self.random.randint(1, 6))

    def save(self) -> None:
        self.seen["saved"] += self.scene.cache.restart.save(self.random.randint(1, 6))

    def lose_disk(self) -> None:
        self.seen["gone with the disk"] += self.scene.empty_disk()

    def restart(self) -> None:
        """Kill the process at any moment, and start it again; at times a record is missing."""
        if not self.scene.tiers.disk_blocks:
            return
        self.running.clear()
        self.released.clear()
        self.prunings.clear()
        found = list(self.scene.records.items())
        self.random.shuffle(found)
        if found and self.random.random() < 0.3:
            self.scene.records.pop(found.pop()[0])
        self.seen["restored"] += self.scene.restart(found)

    def end_all(self) -> None:
        for one in list(self.running):
            self._end(one)

    def finish(self) -> None:
        """End all sequences, and check that nothing has leaked."""
        scene = self.scene
        self.end_all()
        scene.take_plan()
        scene.complete([(move, CopyOutcome.DONE) for move in scene.under_way])
        scene.cache.check_invariants()
        scene.check_contents()
        scene.copy_all()
        scene.cache.flush()
        scene.copy_all()
        scene.cache.check_invariants()
        assert len(scene.cache.in_flight) == scene.cache.tree.num_nodes == 0
        assert scene.cache.capacity.pool().free == len(scene.memory)
        assert scene.records == {}
        for allocator in scene.cache.capacity.allocators.values():
            assert allocator.num_free == allocator.total
        assert all(use.blocks_held == 0 for use in scene.cache.capacity.owners().values())
