"""The modules that a request names, with the values of their parameters.

Elsewhere: how the modules and the request's own text become a prompt (`joined.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from gateway.errors import BadRequest
from gateway.processes.fair_executor import Steps
from gateway.prompts.modules.layout import (
    Encode,
    FreePositions,
    IsScaffold,
    PlacedModule,
    PlacedSchema,
    joined,
)
from gateway.prompts.modules.schema import MOST_MODULES, Name
from gateway.prompts.tokens.tokenizer import TokenIds

PARAM = "ratoon.modules"
SchemaId = Annotated[str, Meta(min_length=1, max_length=128)]


class ModuleUse(Struct, frozen=True, forbid_unknown_fields=True):
    """A prompt module that a request names, and the values of the module's parameters."""

    name: Name
    values: dict[Name, str] = {}


class ModulesOption(Struct, frozen=True, forbid_unknown_fields=True):
    """The prompt modules that precede the request's own text."""

    schema: SchemaId
    use: Annotated[tuple[Name | ModuleUse, ...], Meta(max_length=MOST_MODULES)] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens of modules that attend to each other, and their positions in the schema."""

    names: tuple[str | None, ...]
    token_ids: TokenIds
    positions: TokenIds
    is_scaffold: IsScaffold

    @property
    def scaffolds(self) -> tuple[tuple[int, int], ...]:
        """The indices (first, end) of parameters' scaffolds, in order."""
        changes = np.flatnonzero(np.diff(self.is_scaffold, prepend=False, append=False))
        return tuple((int(first), int(end)) for first, end in changes.reshape(-1, 2))

    def since(self, token: int) -> Run:
        """Return the run's tokens from `token` on, without names."""
        return Run((), self.token_ids[token:], self.positions[token:], self.is_scaffold[token:])

    def then(self, other: Run) -> Run:
        """Return a run with this run's tokens and then the tokens of `other`."""
        return Run(
            self.names + other.names,
            np.concatenate([self.token_ids, other.token_ids]),
            np.concatenate([self.positions, other.positions]),
            np.concatenate([self.is_scaffold, other.is_scaffold]),
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """The runs of a prompt's modules, and the tokens of the parameters' values."""

    digest: bytes  # SHA-256 of the module schema
    used: tuple[str, ...]  # names of the modules, in the order of their positions
    runs: tuple[Run, ...]  # runs of text, of at least one token each
    value_ids: TokenIds
    value_positions: TokenIds
    end: int

    @property
    def together(self) -> tuple[tuple[str, ...], ...]:
        """The names of modules that attend to each other, as a tuple for each such group."""
        found = (tuple(filter(None, run.names)) for run in self.runs)
        return tuple(names for names in found if len(names) > 1)


def select(schema: PlacedSchema, option: ModulesOption, encode: Encode) -> Steps[Selection]:
    """Select the modules that a request names; raise BadRequest for names not in the schema."""
    wanted = _wanted(schema, option)
    chosen = [one for one in schema.modules if one.name is None or one.name in wanted]
    if not chosen:
        raise BadRequest("the request names no module", param=f"{PARAM}.use")
    values, positions = list[TokenIds](), list[TokenIds]()
    for module in chosen:
        given = {} if module.name is None else wanted[module.name]
        for name, text in given.items():
            room = module.parameters[name]
            ids = yield from encode(text, room.length)
            if ids is None:
                raise _too_long(name, room)
            first = room.first
            values.append(ids)
            positions.append(np.arange(first, first + len(ids), dtype=np.int32))
    return Selection(
        schema.digest,
        tuple(module.name for module in chosen if module.name is not None),
        tuple(run for run in _runs(chosen, schema) if not run.is_scaffold.all()),
        joined(values),
        joined(positions),
        max(module.end for module in chosen),
    )


def _wanted(schema: PlacedSchema, option: ModulesOption) -> dict[str, Mapping[str, str]]:
    """Return the parameters' values of each named module, by the module's name."""
    known = {module.name: module for module in schema.modules if module.name is not None}
    wanted, used = dict[str, Mapping[str, str]](), dict[int, str]()
    for number, use in enumerate(option.use):
        name, values = (use, {}) if isinstance(use, str) else (use.name, use.values)
        param = f"{PARAM}.use[{number}]"
        module = known.get(name)
        if module is None:
            message = f"the schema has no module `{name}`"
            raise BadRequest(message, code="unknown_module", param=param)
        if other := used.get(module.place):
            both = f"`{other}` and `{name}` are of one union; a prompt has at most one of it"
            raise BadRequest(both if other != name else f"`{name}` is used twice", param=param)
        unknown = [one for one in values if one not in module.parameters]
        if unknown:
            raise BadRequest(
                "the module has no such parameter", code="unknown_parameter", param=param
            )
        wanted[name] = values
        used[module.place] = name
    return wanted


def _too_long(name: str, room: FreePositions) -> BadRequest:
    return BadRequest(
        f"the value of `{name}` has more tokens than the {room.length} that the schema leaves",
        code="parameter_too_long",
        param=f"{PARAM}.use",
    )


def _runs(chosen: Sequence[PlacedModule], schema: PlacedSchema) -> list[Run]:
    """Return a run for each module, or for the modules at all places of a scaffold."""
    places = {module.name: module.place for module in schema.modules}
    whole = [
        one
        for one in schema.scaffolds
        if {module.place for module in chosen if module.name in one}
        == {places[name] for name in one}
    ]
    groups = dict[int, list[PlacedModule]]()
    for place, module in enumerate(chosen):
        scaffold = next((at for at, one in enumerate(whole) if module.name in one), None)
        groups.setdefault(place if scaffold is None else -1 - scaffold, []).append(module)
    return [_run(group) for group in groups.values()]


def _run(modules: Sequence[PlacedModule]) -> Run:
    return Run(
        tuple(module.name for module in modules),
        np.concatenate([module.token_ids for module in modules]),
        np.concatenate([module.positions for module in modules]),
        np.concatenate([module.is_scaffold for module in modules]),
    )
