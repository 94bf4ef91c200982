"""The copies under way, and the plan of copies that the engine is to start next.

begin -> (take_plan) -> end, once for each move -> the whole transfer is applied
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import repeat

from prefix_cache.errors import UnknownMove
from prefix_cache.hashing import ROOT_KEY
from prefix_cache.tree.edge import BlockIds
from prefix_cache.tree.node import Node, Transfer
from storage.move import DEVICE_TIER, DISK_TIER, BlockRecord, Move, Plan, Tier

NOTHING = Plan()


class CopyOutcome(Enum):
    """The outcomes of one block's move."""

    DONE = "done"
    FAILED = "failed"  # the block stays in the source tier
    LOST = "lost"


class InFlight:
    """The copies under way, and the plan that the engine has not fetched yet."""

    def __init__(self) -> None:
        # Transfers by their first move while no move has ended. Usually the moves of a transfer end
        # together. Otherwise, all moves of the transfer are in `_apart`.
        self._whole: dict[Move, Transfer] = {}
        self._apart: dict[Move, Transfer] = {}
        self._transfers: dict[Transfer, None] = {}
        self._moves: list[Move] = []
        self._records: dict[Move, BlockRecord] = {}
        self._erase: list[int] = []
        self.leaving = dict.fromkeys(Tier, 0)
        self.arriving = dict.fromkeys(Tier, 0)
        self.disk_writes: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(self.arriving.values())

    @property
    def plans_loads(self) -> bool:
        """True if the next plan copies blocks to the device. Reads the whole plan."""
        return any(move.target_tier is DEVICE_TIER for move in self._moves)

    def transfers(self) -> list[Transfer]:
        """Return the incomplete transfers. Used by checks."""
        return list(self._transfers)

    def open_moves(self) -> list[tuple[Move, Transfer, int]]:
        """Return the copies under way with their blocks' positions. Used by checks."""
        whole = [(move, transfer) for transfer in self._whole.values() for move in transfer.moves]
        moves = [*whole, *self._apart.items()]
        return [(move, transfer, _position(transfer, move)) for move, transfer in moves]

    def begin(
        self,
        node: Node,
        start: int,
        ends: tuple[Tier, Tier],
        slots: BlockIds,
        *,
        for_owner: str,
        makes_room: bool = False,
    ) -> Transfer:
        """Plan to copy blocks of `node`, from index `start` on, to `slots` of another tier."""
        (source, target), count, first = ends, len(slots), node.start + start
        froms = node.edge.begin(start, ends, slots)
        moves = list(map(Move, repeat(source), froms, repeat(target), slots.tolist()))
        transfer = Transfer(
            source, target, first, first + count, [node], for_owner, makes_room, moves, count
        )
        node.transfers.append(transfer)
        self._transfers[transfer] = None
        self._whole[moves[0]] = transfer
        self._moves += moves
        if DISK_TIER in ends:
            self._records.update((move, _record(node, at)) for at, move in enumerate(moves, start))
        self.arriving[target] += count
        if target is DISK_TIER:
            self.disk_writes[node.owner] += count
        if makes_room:
            self.leaving[source] += count
        return transfer

    def begin_state(self, node: Node, ends: tuple[Tier, Tier], slots: tuple[int, int]) -> Transfer:
        """Plan to copy the recurrent state at the end of `node` to a slot of another tier."""
        (source, target), at = ends, node.end
        move = Move(source, slots[0], target, slots[1], is_state=True)
        transfer = Transfer(
            source, target, at, at, [node], node.owner, False, [move], 1, of_state=True
        )
        node.transfers.append(transfer)
        self._transfers[transfer] = None
        self._whole[move] = transfer
        self._moves.append(move)
        if DISK_TIER in ends:
            self._records[move] = _record(node, len(node.edge) - 1)
        self.arriving[target] += 1
        if target is DISK_TIER:
            self.disk_writes[node.owner] += 1
        return transfer

    def transfers_of(self, moves: Sequence[Move]) -> Iterator[Transfer]:
        """Yield the transfers whose moves are all in `moves`, none of them ended."""
        at = 0
        while at < len(moves):
            transfer = self._whole.get(moves[at])
            if transfer is None or list(moves[at : at + len(transfer.moves)]) != transfer.moves:
                at += 1
                continue
            yield transfer
            at += len(transfer.moves)

    def end(self, moves: Iterable[Move], outcome: CopyOutcome) -> Iterator[Transfer]:
        """Record that these copies have ended. Yield each transfer whose last copy has ended.

        Raises UnknownMove at the first move that is not under way.
        """
        ended, at, is_done = list(moves), 0, outcome is CopyOutcome.DONE
        while at < len(ended):
            transfer, count = self._ending(ended, at)
            if not is_done:
                _miss(transfer, ended[at : at + count], outcome)
            at += count
            transfer.open -= count
            self.arriving[transfer.target] -= count
            if transfer.target is DISK_TIER:
                self.disk_writes[transfer.nodes[0].owner] -= count
            if transfer.makes_room:
                self.leaving[transfer.source] -= count
            if not transfer.open:
                yield transfer

    def _ending(self, ended: list[Move], at: int) -> tuple[Transfer, int]:
        """Return the transfer of the move at index `at`, and the number of its moves from there."""
        move = ended[at]
        transfer = self._whole.get(move)
        if transfer is not None and ended[at : at + len(transfer.moves)] == transfer.moves:
            return self._whole.pop(move), len(transfer.moves)
        if move not in self._apart:
            self._tell_apart()
        if move not in self._apart:
            raise UnknownMove(f"{move} is not under way")
        return self._apart.pop(move), 1

    def _tell_apart(self) -> None:
        for transfer in self._whole.values():
            self._apart.update(dict.fromkeys(transfer.moves, transfer))
        self._whole = {}

    def close(self, transfer: Transfer) -> None:
        """Forget a complete transfer."""
        del self._transfers[transfer]

    def void(self, tier: Tier) -> None:
        """Count all copies under way to `tier` as failed, whatever their reports say."""
        for transfer in self._transfers:
            if transfer.target is tier:
                # a recurrent state has no run of blocks
                last = max(transfer.end, transfer.start + 1)
                transfer.missed.update(range(transfer.start, last))

    def erase(self, slots: Iterable[int]) -> None:
        """Plan to erase disk slots."""
        self._erase += slots

    def take_plan(self) -> Plan:
        """Return the copies and erasures planned since the last call."""
        if not self._moves and not self._erase:
            return NOTHING
        plan = Plan(tuple(self._moves), self._records, tuple(dict.fromkeys(self._erase)))
        self._moves, self._records, self._erase = [], {}, []
        return plan


def _miss(transfer: Transfer, moves: list[Move], outcome: CopyOutcome) -> None:
    positions = [_position(transfer, move) for move in moves]
    transfer.missed.update(positions)
    if outcome is CopyOutcome.LOST:
        transfer.lost.update(positions)


def _position(transfer: Transfer, move: Move) -> int:
    return transfer.start + transfer.moves.index(move)


def _record(node: Node, at: int) -> BlockRecord:
    before = ROOT_KEY if node.parent is None else node.parent.last_key
    return BlockRecord(
        key=node.edge.key(at),
        parent_key=node.edge.key(at - 1) if at else before,
        namespace=node.namespace,
        owner=node.owner,
        token_ids=node.edge.block(at).astype("<i4", copy=False).tobytes(),
        hits=node.hits + node.seen,
    )
