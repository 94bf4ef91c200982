"""The tokens of a schema's modules, and the positions of the modules in every prompt.

| module | union: the longest of its modules | module with a parameter |
0        first of all its modules            first    ^ free positions   `length`

A parameter's scaffold stands at the first of the free positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gateway.errors import BadRequest
from gateway.processes.fair_executor import Steps
from gateway.prompts.modules.schema import ModuleSpec, Parameter, SchemaSpec
from gateway.prompts.tokens.tokenizer import TokenIds

# A function that returns a text's tokens. The function returns None as soon as it finds more tokens
# than a given number.
Encode = Callable[[str, int], Steps[TokenIds | None]]

# one for each token: whether it belongs to a parameter's scaffold
IsScaffold = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FreePositions:
    """The positions of a parameter."""

    first: int
    length: int


@dataclass(frozen=True, slots=True)
class PlacedModule:
    """A module's tokens, with scaffolds for parameters' values, and their positions."""

    name: str | None  # None: an unnamed module, part of every prompt
    place: int  # index of the module's place in the schema; modules of a union share a place
    token_ids: TokenIds
    positions: TokenIds
    is_scaffold: IsScaffold
    parameters: dict[str, FreePositions]
    first: int
    end: int

    @property
    def length(self) -> int:
        """The number of the module's positions."""
        return self.end - self.first

    @property
    def num_tokens(self) -> int:
        """The number of the module's tokens without scaffolds."""
        return len(self.token_ids) - int(self.is_scaffold.sum())


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
    token_ids, positions, scaffolds = list[TokenIds](), list[TokenIds](), list[IsScaffold]()
    parameters, at = dict[str, FreePositions](), first
    for piece in module.pieces:
        if isinstance(piece, Parameter):
            ids, end = (yield from _scaffold(piece, encode)), at + piece.length
            parameters[piece.parameter] = FreePositions(at, piece.length)
        else:
            ids = yield from _text(piece, encode, most)
            end = at + len(ids)
        token_ids.append(ids)
        positions.append(np.arange(at, at + len(ids), dtype=np.int32))
        scaffolds.append(np.full(len(ids), isinstance(piece, Parameter)))
        at = end
    is_scaffold = np.concatenate([np.empty(0, np.bool_), *scaffolds])
    tokens = joined(token_ids), joined(positions), is_scaffold
    return PlacedModule(module.name, place, *tokens, parameters, first, at)


def _text(text: str, encode: Encode, most: int) -> Steps[TokenIds]:
    ids = yield from encode(text, most)
    if ids is None:
        message = f"a module has more than {most} tokens"
        raise BadRequest(message, code="context_length_exceeded", param="modules")
    return ids


def _scaffold(parameter: Parameter, encode: Encode) -> Steps[TokenIds]:
    ids = yield from encode(parameter.scaffold, parameter.length)
    if ids is None:
        message = f"the scaffold of `{parameter.parameter}` has more than {parameter.length} tokens"
        raise BadRequest(message, code="parameter_too_long", param="modules")
    return ids


def joined(arrays: Sequence[TokenIds]) -> TokenIds:
    """Join arrays of token ids or positions, of which there may be none."""
    return np.concatenate([np.empty(0, np.int32), *arrays]).astype(np.int32)
