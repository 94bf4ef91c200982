"""Random operations on a cache of a model with recurrent layers, with a simulated state pool.

A state is a number that depends on every token before it and on its namespaces. As in the engine, a
row reads one slot and writes another, and must read the state of its sequence at its start. The
next row therefore detects an overwritten version, a checkpoint of other tokens, or a slot that was
given away too early. With tiers, states below the device have slots of their own, copies end late
and may fail, and processes are killed.

Each step is launched before the previous one is settled. Some steps fail, and some rows are left
out.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

import numpy as np

from prefix_cache.cache import DEVICE_ONLY, PrefixCache
from prefix_cache.eviction.shares import Quota
from prefix_cache.hashing import TokenIds, block_keys
from prefix_cache.leases.lease import Lease
from prefix_cache.leases.lease_states import LeaseStates
from prefix_cache.namespace import Namespace, NamespacePath
from prefix_cache.tiers.pruning import Pruning
from prefix_cache.tiers.tier_pools import Tiers
from prefix_cache.tree.node import Checkpoint
from storage.move import BlockRecord, Move, Tier
from tests.prefix_cache.support.driver import OWNERS, PATHS
from tests.prefix_cache.support.scene import namespace

Chain = tuple[tuple[Namespace, tuple[int, ...]], ...]
WRONG = -1  # contents of a slot that a failed step has written


def state_after(where: NamespacePath, ids: TokenIds, end: int, size: int) -> int:
    """Return the state of a sequence after its first `end` tokens."""
    state = 0
    for at in range(end):
        state = hash((state, int(ids[at]), where.at(at // size)))
    return state


def states_of(lease: Lease) -> LeaseStates:
    assert lease.states is not None
    return lease.states


@dataclass(eq=False)
class Running:
    """A sequence. `computed` counts its launched tokens, `settled` those whose step is settled."""

    path: NamespacePath
    ids: TokenIds
    owner: str
    lease: Lease
    computed: int
    settled: int
    # positions at which launched, unsettled rows of this sequence end
    rows: deque[int] = field(default_factory=deque)
    may_leave_out: bool = False  # whether no row has been decided since the last launch


class StatesDriver:
    def __init__(
        self,
        seed: int,
        *,
        num_blocks: int,
        num_states: int,
        block_size: int = 2,
        max_tokens: int = 16,
        quotas: bool = False,
        tiers: Tiers = DEVICE_ONLY,
    ) -> None:
        self.random = Random(seed)
        self.tiers = tiers
        self._new_cache = partial(
            PrefixCache,
            num_blocks=num_blocks,
            block_size=block_size,
            num_states=num_states,
            tiers=tiers,
        )
        self.cache = self._new_cache()
        self.size, self.max_tokens, self.quotas = block_size, max_tokens, quotas
        self.memory = [WRONG] * num_states
        self.memory[0] = 0
        self.places = {
            Tier.DEVICE: self.memory,
            Tier.HOST: [WRONG] * tiers.host_states,
            Tier.DISK: [WRONG] * tiers.disk_states,
        }
        self.records: dict[int, BlockRecord] = {}  # the disk's contents
        # pending moves, with the contents that they read
        self.under_way: dict[Move, tuple[int, BlockRecord | None]] = {}
        self.now = 0.0
        self.running: list[Running] = []
        self.pins: list[Lease] = []
        self.prunings: list[Pruning] = []
        self.history: list[tuple[NamespacePath, TokenIds]] = []
        self.seen: Counter[str] = Counter()
        self._acts = {
            self.acquire: 20,
            self.launch: 80,
            self.settle: 20,
            self.fail: 5,
            self.leave_out: 8,
            self.release: 14,
            self.discard: 1,
            self.retain: 3,
            self.pin: 2,
            self.flush: 0.5,
            self.prune: 5,
        }
        if quotas:
            self._acts[self.divide] = 0.5
        if tiers != DEVICE_ONLY:
            self._acts |= {self.take_plan: 40, self.complete: 40, self.save: 2}
            self._acts |= {self.acquire: 50, self.release: 30}
        if tiers.disk_blocks:
            self._acts[self.restart] = 0.5

    def run(self, operations: int, check_every: int = 1) -> None:
        acts, weights = list(self._acts), list(self._acts.values())
        for count in range(operations):
            self.random.choices(acts, weights)[0]()
            self.now += 1.0
            if count % check_every == 0:
                self.cache.check_invariants()
                self.check_match()
        self.finish()

    def draw(self) -> tuple[NamespacePath, TokenIds]:
        length = self.random.randint(1, self.max_tokens)
        ids = np.array([self.random.getrandbits(1) for _ in range(length)], np.int32)
        if self.running and self.random.random() < 0.6:
            other = self.random.choice(self.running)
            same = min(self.random.randint(1, self.max_tokens), len(other.ids))
            return other.path, np.concatenate([other.ids[:same], ids])[: self.max_tokens]
        if self.tiers != DEVICE_ONLY and self.history and self.random.random() < 0.7:
            path, said = self.random.choice(self.history)
            return path, np.concatenate([said, ids])[: self.max_tokens]
        return self.random.choice(PATHS), ids

    # ---- a plain view of the contents

    def checkpoints(self) -> list[tuple[Chain, Checkpoint]]:
        """Return each checkpoint in the tree, with the blocks before it."""
        found: list[tuple[Chain, Checkpoint]] = []
        waiting = [(self.cache.tree.root, Chain())]
        while waiting:
            node, chain = waiting.pop()
            for index in range(len(node.edge)):
                block = tuple(int(token) for token in node.edge.block(index))
                chain = (*chain, (node.namespace, block))
            if node.checkpoint is not None:
                found.append((chain, node.checkpoint))
            waiting.extend((child, chain) for child in node.children.values())
        return found

    def chain(self, where: NamespacePath, ids: TokenIds) -> Chain:
        blocks = range(len(ids) // self.size)
        parts = [tuple(int(t) for t in ids[at * self.size : (at + 1) * self.size]) for at in blocks]
        return tuple((where.at(at), part) for at, part in enumerate(parts))

    def check_match(self) -> None:
        """Check that a match ends at the longest checkpoint whose blocks begin the prompt."""
        where, ids = self.draw()
        chain, kept = self.chain(where, ids), self.checkpoints()
        usable = [one for one, _ in kept if chain[: len(one)] == one]
        match = self.cache.tree.match(where, ids)
        assert match.at.num_blocks == match.found.total == max(map(len, usable), default=0)
        assert match.known.num_blocks >= match.at.num_blocks
        self.seen["matched beyond a state"] += match.known.num_blocks > match.at.num_blocks
        for one, checkpoint in kept:
            tokens = np.array([token for _, block in one for token in block], np.int32)
            path = NamespacePath(tuple((at, name) for at, (name, _) in enumerate(one)))
            state = state_after(path, tokens, len(tokens), self.size)
            for tier, copy in checkpoint.copies.items():
                there = self.places[tier][copy.slot]
                assert there == state or (there == WRONG and tier is not Tier.DEVICE)
                self.seen[f"kept in {tier.value}"] += 1

    # ---- operations

    def acquire(self) -> None:
        where, ids = self.draw()
        owner, shares = self.random.choice(OWNERS), self.random.random() < 0.9
        expected = self.cache.tree.match(where, ids[:-1])
        loads = self.random.choice((None, None, 0, 2))
        lease = self.cache.acquire(
            where, ids, owner=owner, now=self.now, shares=shares, load_blocks=loads
        )
        if lease is None:
            self.seen["refused"] += 1
            return
        states, cached = states_of(lease), lease.cached_tokens
        most = expected.found.total * self.size if shares else 0
        assert cached <= most
        assert cached == most or self.tiers != DEVICE_ONLY
        assert states.at.position == cached
        if lease.ready:
            assert self.memory[states.at.slot] == state_after(where, ids, cached, self.size)
        self.seen["loading"] += not lease.ready
        if shares:
            assert states.matched == expected.known.num_blocks * self.size
        wanted = [states.matched, len(ids) - 1, *self.random.sample(range(len(ids)), 1)]
        self.cache.states.want(lease, wanted)
        self.seen["hits"] += cached > 0
        self.history = [*self.history[-16:], (where, ids)]
        self.running.append(Running(where, ids, owner, lease, cached, cached))

    def launch(self) -> None:
        """Launch a row, unless two are pending; extend the sequence if it is at its end."""
        one = self._any_ready()
        if one is None or len(one.rows) == 2 or not self._has_tokens(one):
            return
        slot, end = self._row(one)
        state = state_after(one.path, one.ids, one.computed, self.size)
        assert self.memory[states_of(one.lease).at.slot] == state
        self.memory[slot] = state_after(one.path, one.ids, end, self.size)
        self.cache.states.launched(one.lease, end, slot)
        one.rows.append(end)
        one.computed, one.may_leave_out = end, True
        if len(one.rows) == 2:  # the engine settles a step after it has launched the next one
            self._settle(one)

    def fail(self) -> None:
        """Let a launch fail after it has written a state."""
        one = self._any_ready()
        if one is not None and len(one.rows) < 2 and self._has_tokens(one):
            slot, _ = self._row(one)
            self.memory[slot] = WRONG
            one.may_leave_out = False
            self.seen["failed"] += 1

    def leave_out(self) -> None:
        """Leave out the last launched row, so that it is computed again."""
        one = self._any()
        if one is not None and one.rows and one.may_leave_out:
            one.rows.pop()
            one.may_leave_out = False
            self.cache.states.left_out(one.lease)
            one.computed = states_of(one.lease).at.position
            self.seen["left out"] += 1

    def settle(self) -> None:
        one = self._any()
        if one is not None and one.rows:
            self._settle(one)

    def release(self) -> None:
        if one := self._any():
            self.running.remove(one)
            self.cache.release(one.lease, now=self.now)

    def discard(self) -> None:
        if one := self._any():
            self.running.remove(one)
            given = [node for node in states_of(one.lease).given if node.attached]
            self.cache.discard(one.lease, now=self.now)
            assert not any(node.attached and node.checkpoint for node in given)

    def retain(self) -> None:
        if one := self._any():
            marked = one.ids[: self.random.randint(1, len(one.ids))]
            self.cache.retain(one.lease, marked, self.random.randint(5, 60), now=self.now)

    def pin(self) -> None:
        if self.pins and self.random.random() < 0.5:
            self.cache.release(self.pins.pop(), now=self.now)
            return
        kept = self.checkpoints()
        if not kept:
            return
        chain, _ = self.random.choice(kept)
        path = NamespacePath(tuple((at, name) for at, (name, _) in enumerate(chain)))
        ids = np.array([token for _, block in chain for token in block], np.int32)
        lease = self.cache.pin(path, ids, owner="published", now=self.now)
        if lease is not None:
            self.pins.append(lease)
            self.seen["pinned"] += 1

    def flush(self) -> None:
        names = ("pub", "group", "tenant a", "tenant b")
        where = namespace(self.random.choice(names)) if self.random.random() < 0.6 else None
        owner = self.random.choice(OWNERS) if self.random.random() < 0.6 else None
        namespaces = None if where is None else (where,)
        self.prunings.append(self.cache.pruning(namespaces, owner))
        if self.random.random() < 0.5:
            self.prunings.pop().finish()

    def prune(self) -> None:
        for pruning in self.prunings[:1]:
            pruning.advance(self.random.randint(1, 4))
            if pruning.is_over:
                self.prunings.remove(pruning)

    def divide(self) -> None:
        """Set an owner's quota, or partition the tiers permanently."""
        if self.random.random() < 0.3:
            self.cache.quotas.partition({owner: Quota() for owner in OWNERS})
        else:
            ceiling = self.random.choice((0.2, 0.5, 1.0))
            self.cache.quotas.set(self.random.choice(OWNERS), Quota(ceiling=ceiling))

    def take_plan(self) -> None:
        """Begin the planned copies; a target is unusable until its copy ends."""
        plan = self.cache.moves.take_plan()
        for row in plan.erase:
            assert row not in self._rows("source") | self._rows("target")
            self.records.pop(row, None)
        for move in plan.moves:
            read = 0
            if move.is_state:
                self.places[move.target_tier][move.target] = WRONG
                read = self.places[move.source_tier][move.source]
            self.under_way[move] = read, plan.records.get(move)

    def complete(self) -> None:
        """End some copies; the source of a lost copy is damaged from then on."""
        moves = list(self.under_way)
        self.random.shuffle(moves)
        ends: dict[str, list[Move]] = {"done": [], "failed": [], "lost": []}
        for move in moves[: self.random.randint(0, len(moves))]:
            good = 0.5 if move.target_tier is Tier.DEVICE else 0.85
            ends[self._end(move, self.random.random() < good)].append(move)
        self.cache.moves.complete(**ends)

    def _end(self, move: Move, is_good: bool) -> str:
        read, record = self.under_way.pop(move)
        outcome = "done" if is_good else "failed"
        is_read_below = move.source_tier is not Tier.DEVICE
        if is_read_below and (read == WRONG or (not is_good and self.random.random() < 0.5)):
            outcome = "lost"
        if move.is_state:
            source, target = self.places[move.source_tier], self.places[move.target_tier]
            assert read != WRONG or outcome == "lost"
            assert source[move.source] in (read, WRONG)
            assert target[move.target] == WRONG
            if outcome == "lost":
                source[move.source] = WRONG
            elif outcome == "done":
                target[move.target] = read
        if outcome == "done" and move.target_tier is Tier.DISK:
            assert record is not None
            rows = self.tiers.erased_with(move.target) if move.is_state else [move.target]
            for part, row in enumerate(rows):
                self.records[row] = replace(record, state_part=part if move.is_state else None)
        kind = "state" if move.is_state else "block"
        way = f"{move.source_tier.value} to {move.target_tier.value}"
        self.seen[f"{kind} {way}: {outcome}"] += 1
        return outcome

    def _rows(self, end: str) -> set[int]:
        """Return the disk slots that pending copies read ("source") or write ("target")."""
        rows: set[int] = set()
        for move in self.under_way:
            if getattr(move, f"{end}_tier") is Tier.DISK:
                slot = getattr(move, end)
                rows.update(self.tiers.erased_with(slot) if move.is_state else [slot])
        return rows

    def save(self) -> None:
        self.cache.restart.save(self.random.randint(1, 8))

    def restart(self) -> None:
        """Kill the process: pending writes are half done, and a record may be damaged."""
        self.prunings.clear()
        for move, (_, record) in self.under_way.items():
            if move.is_state and move.target_tier is Tier.DISK and record is not None:
                row = self.tiers.erased_with(move.target)[0]
                self.records[row] = replace(record, state_part=0)
        found = list(self.records.items())
        self.random.shuffle(found)
        if found and self.random.random() < 0.5:
            self.records.pop(found.pop()[0])
        self.running, self.pins, self.under_way = [], [], {}
        for tier in (Tier.DEVICE, Tier.HOST):
            self.places[tier][:] = [WRONG] * len(self.places[tier])
        self.memory[0] = 0
        self.cache = self._new_cache()
        self.seen["restored"] += self.cache.restart.restore(found, now=self.now)
        self.seen["restored states"] += len(self.checkpoints())
        if self.random.random() < 0.5:
            self.cache.restart.hottest(8)

    def finish(self) -> None:
        """Check that nothing has leaked."""
        for one in list(self.running):
            self.running.remove(one)
            self.cache.release(one.lease, now=self.now)
        for lease in self.pins:
            self.cache.release(lease, now=self.now)
        self.cache.check_invariants()
        self.cache.flush()
        self.take_plan()
        self.cache.moves.complete(failed=[*self.under_way])
        self.under_way.clear()
        self.take_plan()
        checkpoints = self.cache.checkpoints
        assert checkpoints.is_empty
        assert checkpoints.num_leased == checkpoints.num_pinned == 0
        assert not self.records
        assert not any(any(at.usage.held.values()) for at in checkpoints.tiers.values())

    # ---- parts of operations

    def _any(self) -> Running | None:
        return self.random.choice(self.running) if self.running else None

    def _any_ready(self) -> Running | None:
        """Return a sequence whose prefix is loaded; if the load failed, release the sequence."""
        one = self._any()
        if one is not None and one.lease.failed:
            self.running.remove(one)
            self.cache.release(one.lease, now=self.now)
            self.seen["failed loads"] += 1
            return None
        return one if one is not None and one.lease.ready else None

    def _has_tokens(self, one: Running) -> bool:
        if one.computed < len(one.ids):
            return True
        more = np.array([self.random.getrandbits(1)], np.int32)
        total = len(one.ids) + 1
        if total > 2 * self.max_tokens or not self.cache.extend(one.lease, total, now=self.now):
            return False
        one.ids = np.concatenate([one.ids, more])
        return True

    def _row(self, one: Running) -> tuple[int, int]:
        """Return the slot and the end position of the sequence's next row."""
        states = states_of(one.lease)
        stop = states.stop_after(one.computed) or len(one.ids)
        end = self.random.randint(one.computed + 1, min(stop, len(one.ids)))
        slot = states.next_out()
        assert slot in states.owned
        return slot, end

    def _settle(self, one: Running) -> None:
        end = one.rows.popleft()
        if end // self.size > one.settled // self.size:
            keys = block_keys(one.path, one.ids, self.size)
            self.cache.commit(one.lease, one.ids[:end], end, keys, now=self.now)
        one.settled = end
