"""Which copies are under way, and what the owner of the bytes is to do next.

Knows: moves and the blocks they are of. Does not know: why they were asked for, or what follows
when they end (`ascent`, `descent`).
"""

from __future__ import annotations

from prefix_cache.allocator import BlockIds
from prefix_cache.errors import UnknownMove
from prefix_cache.hashing import KEY_BYTES, ROOT_KEY
from prefix_cache.residency import Event
from prefix_cache.tree import Flight, Node
from storage.move import Move, Plan, Record, Tier


class Transit:
    """The copies under way, and the plan that has not been fetched yet."""

    def __init__(self) -> None:
        self._flights: dict[Move, Flight] = {}
        self._moves: list[Move] = []
        self._erase: list[int] = []
        self._leaving = dict.fromkeys(Tier, 0)
        self._arriving = dict.fromkeys(Tier, 0)

    def __len__(self) -> int:
        return len(self._flights)

    def flights(self) -> list[Flight]:
        """Return the copies under way, for checks."""
        return list(self._flights.values())

    def leaving(self, tier: Tier) -> int:
        """How many copies from a tier to a slower one are under way."""
        return self._leaving[tier]

    def arriving(self, tier: Tier) -> int:
        """How many copies into a tier are under way."""
        return self._arriving[tier]

    def begin(
        self, node: Node, start: int, source: Tier, target: Tier, slots: BlockIds, owner: str
    ) -> list[Flight]:
        """Copy the blocks of `node` from place `start` on to these slots of `target`."""
        edge, end = node.edge, start + len(slots)
        edge.change(start, end, Event.BEGIN, target)
        edge.assign(start, target, slots)
        froms = edge.slots(source)[start:end].tolist()
        flights = [
            Flight(Move(source, at, target, to), node, block, node.start + start, owner)
            for block, at, to in zip(
                range(node.start + start, node.start + end), froms, slots.tolist(), strict=True
            )
        ]
        node.flights += flights
        for flight in flights:
            self._flights[flight.move] = flight
            self._moves.append(flight.move)
        self._arriving[target] += len(flights)
        if target is not Tier.DEVICE:
            self._leaving[source] += len(flights)
        return flights

    def end(self, move: Move) -> Flight:
        """The copy has been settled; UnknownMove if it is not under way."""
        flight = self._flights.pop(move, None)
        if flight is None:
            raise UnknownMove(f"{move} is not under way")
        self._arriving[move.target_tier] -= 1
        if move.target_tier is not Tier.DEVICE:
            self._leaving[move.source_tier] -= 1
        return flight

    def erase(self, slots: BlockIds) -> None:
        """These slots on disk hold nothing any more."""
        self._erase += slots.tolist()

    def take_plan(self) -> Plan:
        """What has been asked for since the last time."""
        moves, erase = tuple(self._moves), tuple(self._erase)
        self._moves, self._erase = [], []
        on_disk = [move for move in moves if Tier.DISK in (move.source_tier, move.target_tier)]
        return Plan(moves, {move: _record(self._flights[move]) for move in on_disk}, erase)


def _record(flight: Flight) -> Record:
    node, at = flight.node, flight.index
    keys = node.edge.keys[: (at + 1) * KEY_BYTES]
    before = ROOT_KEY if node.parent is None else node.parent.last_key
    parent_key = keys[-2 * KEY_BYTES : -KEY_BYTES] or before
    return Record(
        key=keys[-KEY_BYTES:],
        parent_key=parent_key,
        namespace=node.namespace,
        owner=node.owner,
        token_ids=node.edge.block(at).astype("<i4", copy=False).tobytes(),
        hits=node.hits,
    )
