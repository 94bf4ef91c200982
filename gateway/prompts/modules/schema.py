"""A module schema, in the form that a tenant sends and that is stored.

modules    in the order of their positions; unnamed modules are always part of the prompt
union      modules that begin at the same position: a prompt has at most one of them
parameter  positions within a module that are left free for a request's own tokens
scaffold   modules that attend to each other in a prompt that has one at each of their places
           A parameter's scaffold is text at its positions; only the module's later text attends to
           this text.

A named module may have no text: it has only parameters, or is the outer module of others in PML.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gateway.errors import BadRequest

MOST_MODULES = 200
MOST_SCHEMA_BYTES = 1 << 20
MOST_PARAMETER_TOKENS = 1024
NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.:\-]{0,63}$(?!\n)"

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]


class Parameter(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A place in a module for at most `length` tokens that a request supplies.

    The module is computed with `scaffold` at this place. No prompt attends to the scaffold.
    """

    parameter: Name
    length: Annotated[int, Meta(ge=1, le=MOST_PARAMETER_TOKENS)]
    scaffold: str = ""


class ModuleSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A module: a `text`, or `parts` of text and parameters; or a union of modules."""

    name: Name | None = None
    text: str | None = None
    parts: Annotated[tuple[str | Parameter, ...], Meta(max_length=256)] | None = None
    union: Annotated[tuple[ModuleSpec, ...], Meta(min_length=1, max_length=64)] | None = None

    @property
    def pieces(self) -> tuple[str | Parameter, ...]:
        """The texts and parameters of a module, in order."""
        return self.parts or (() if self.text is None else (self.text,))

    @property
    def alternatives(self) -> tuple[ModuleSpec, ...]:
        """The modules at this place: this module, or the modules of the union."""
        return self.union or (self,)


ModuleSpecs = Annotated[tuple[ModuleSpec, ...], Meta(min_length=1, max_length=MOST_MODULES)]


class SchemaSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A module schema: modules, a name, and scaffolds."""

    modules: ModuleSpecs
    name: Annotated[str, Meta(max_length=128)] = ""
    scaffolds: tuple[tuple[Name, ...], ...] = ()

    def every(self) -> Iterator[tuple[str, ModuleSpec]]:
        """Yield each module with its place in the schema, written as in error messages."""
        for place, module in enumerate(self.modules):
            if module.union is None:
                yield f"modules[{place}]", module
            for number, one in enumerate(module.union or ()):
                yield f"modules[{place}].union[{number}]", one

    @property
    def content(self) -> bytes:
        """The schema as JSON. Equal schemas have equal JSON."""
        return msgspec.json.encode(self)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the content, by which KV blocks of different schemas get different keys."""
        return hashlib.sha256(self.content).digest()


def check_schema(schema: SchemaSpec) -> None:
    """Raise BadRequest with the wrong field for a schema that cannot be used."""
    if len(schema.content) > MOST_SCHEMA_BYTES:
        raise BadRequest(f"the schema has more than {MOST_SCHEMA_BYTES} bytes", param="modules")
    for place, module in enumerate(schema.modules):
        if module.union is not None:
            _check_union(module, f"modules[{place}]")
    named = Counter[str]()
    for param, module in schema.every():
        _check_module(module, param)
        named.update([] if module.name is None else [module.name])
    if sum(1 for _ in schema.every()) > MOST_MODULES:
        raise BadRequest(f"the schema has more than {MOST_MODULES} modules", param="modules")
    twice = next((name for name, count in named.items() if count > 1), None)
    if twice is not None:
        raise BadRequest("two modules have one name", param="modules")
    _check_scaffolds(schema)


def _check_union(module: ModuleSpec, param: str) -> None:
    if module.text is not None or module.parts is not None or module.name is not None:
        raise BadRequest("a union has no name or text of its own", param=param)
    for number, one in enumerate(module.union or ()):
        if one.name is None or one.union is not None:
            raise BadRequest("a union is of modules with names", param=f"{param}.union[{number}]")


def _check_module(module: ModuleSpec, param: str) -> None:
    if (module.text is None) == (module.parts is None):
        raise BadRequest("a module has either `text` or `parts`", param=param)
    has_text = any(isinstance(piece, str) and piece for piece in module.pieces)
    if not has_text and (module.name is None or module.parts is None):
        raise BadRequest("a module without a name, or with `text`, has some text", param=param)
    parameters = [one.parameter for one in module.pieces if isinstance(one, Parameter)]
    if parameters and module.name is None:
        raise BadRequest("a module with parameters has a name", param=param)
    if len(set(parameters)) < len(parameters):
        raise BadRequest("two parameters of a module have one name", param=param)


def _check_scaffolds(schema: SchemaSpec) -> None:
    places = {
        one.name: place
        for place, module in enumerate(schema.modules)
        for one in module.alternatives
        if one.name is not None
    }
    seen = set[str]()
    for number, names in enumerate(schema.scaffolds):
        param = f"scaffolds[{number}]"
        if any(name not in places for name in names):
            raise BadRequest("a scaffold is of the schema's modules, by their names", param=param)
        if len({places[name] for name in names}) < 2:
            raise BadRequest("a scaffold has modules at two places or more", param=param)
        if seen & set(names) or len(set(names)) < len(names):
            raise BadRequest("a module is in one scaffold at most, and once", param=param)
        seen |= set(names)
