"""The tokens of a schema's modules, and the positions of the modules in every prompt.

| module | union: the longest of its modules | module with a parameter |
0        first of all its modules            first    ^ free positions   `length`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gateway.errors import BadRequest
from gateway.processes.fair_executor import Steps
from gateway.prompts.modules.schema import ModuleSpec, Parameter, SchemaSpec
from gateway.prompts.tokens.tokenizer import TokenIds

# A function that returns a text's tokens. The function returns None as soon as it finds more tokens
# than a given number.
Encode = Callable[[str, int], Steps[TokenIds | None]]


@dataclass(frozen=True, slots=True)
class FreePositions:
    """The positions of a parameter."""

    first: int
    length: int


@dataclass(frozen=True, slots=True)
class PlacedModule:
    """A module's tokens without parameters' values, and their positions in the schema."""

    name: str | None  # None: an unnamed module, part of every prompt
    place: int  # index of the module's place in the schema; modules of a union share a place
    token_ids: TokenIds
    positions: TokenIds
    parameters: dict[str, FreePositions]
    first: int
    end: int

    @property
    def length(self) -> int:
        """The number of the module's positions."""
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class PlacedSchema:
    """A module schema's modules in the order of their positions."""

    modules: tuple[PlacedModule, ...]
    scaffolds: tuple[tuple[str, ...], ...]
    digest: bytes

    @property
    def length(self) -> int:
        """The number of positions of the whole schema."""
        return max(module.end for module in self.modules)


def placed_schema(schema: SchemaSpec, encode: Encode, most: int) -> Steps[PlacedSchema]:
    """Tokenise and place the modules of a checked schema. `encode` tokenises one text by itself.

    Raises BadRequest for a text of more than `most` tokens.
    """
    modules, first = list[PlacedModule](), 0
    for place, module in enumerate(schema.modules):
        placed = list[PlacedModule]()
        for one in module.alternatives:
            yield
            placed.append((yield from _placed(one, place, first, encode, most)))
        first = max(one.end for one in placed)
        modules += placed
    return PlacedSchema(tuple(modules), schema.scaffolds, schema.digest)


def _placed(
    module: ModuleSpec, place: int, first: int, encode: Encode, most: int
) -> Steps[PlacedModule]:
    token_ids, positions = list[TokenIds](), list[TokenIds]()
    parameters, at = dict[str, FreePositions](), first
    for piece in module.pieces:
        if isinstance(piece, Parameter):
            parameters[piece.parameter] = FreePositions(at, piece.length)
            at += piece.length
            continue
        ids = yield from encode(piece, most)
        if ids is None:
            raise BadRequest(
                f"a module has more than {most} tokens",
                code="context_length_exceeded",
                param="modules",
            )
        token_ids.append(ids)
        positions.append(np.arange(at, at + len(ids), dtype=np.int32))
        at += len(ids)
    ids, places = joined(token_ids), joined(positions)
    return PlacedModule(module.name, place, ids, places, parameters, first, at)


def joined(arrays: Sequence[TokenIds]) -> TokenIds:
    """Join arrays of token ids or positions, of which there may be none."""
    return np.concatenate([np.empty(0, np.int32), *arrays]).astype(np.int32)
