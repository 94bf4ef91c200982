"""The reading of module schemas in PML, the XML markup of Prompt Cache.

    <schema name="travel">
      You plan journeys.
      <module name="plan">For <param name="days" len="4"/> days.</module>
      <union><module name="miami">...</module><module name="maui">...</module></union>
      <scaffold><module name="fees">...</module><module name="rules">...</module></scaffold>
    </schema>

`parameter` and `length` are other names of `param` and `len`. A module within a module follows the
outer module's own text, is named `outer.inner`, and is a module of its own. The content of
`system`, `user` and `assistant` stands in their place: all modules are part of the system message.

Text outside of modules is part of every prompt. A text of only spaces is dropped. Other texts keep
the spaces at both ends.

Elsewhere: which schemas are allowed (`schema.py`).
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from xml.parsers import expat

import msgspec

from gateway.errors import BadRequest
from gateway.prompts.modules.schema import ModuleSpec, Parameter, SchemaSpec

_ATTRIBUTES = {
    "schema": {"name"},
    "module": {"name"},
    # in Prompt Cache the name of a member to which other modules attend; ignored here
    "union": {"scaffold"},
    "scaffold": set[str](),
    "param": {"name", "len", "scaffold"},
    "parameter": {"name", "length", "scaffold"},
    "system": set[str](),
    "user": set[str](),
    "assistant": set[str](),
}
# attributes of Prompt Cache's elements that are refused here, and why
_REFUSED = {
    "cache": ": every module is cached",
    "src": ": a module's text is in the schema",
}
_LENGTHS = {"param": "len", "parameter": "length"}
_ROLES = ("system", "user", "assistant")
_MOST_DEPTH = 8  # maximum depth of nested modules


def schema_of_pml(text: str) -> SchemaSpec:
    """Read a module schema; raise BadRequest for text that is not PML, or has a DTD."""
    root = _parsed(text)
    _check(root, "schema")
    places, scaffolds = list[ModuleSpec](), list[tuple[str, ...]]()
    for one in _top(root):
        if isinstance(one, str):
            places.append(ModuleSpec(text=one))
        elif one.tag == "scaffold":
            _check(one, "scaffold")
            members = [place for inner in _elements(one) for place in _places(inner, ())]
            places += members
            named = (each.name for member in members for each in member.alternatives)
            scaffolds.append(tuple(name for name in named if name is not None))
        else:
            places += _places(one, ())
    try:
        return msgspec.convert(
            {
                "name": root.get("name", ""),
                "modules": msgspec.to_builtins(places),
                "scaffolds": scaffolds,
            },
            SchemaSpec,
        )
    except msgspec.ValidationError as error:
        raise _wrong(str(error)) from error


def _parsed(text: str) -> ET.Element:
    """Parse XML without namespaces, which would repeat a long URI in the name of every element."""
    parser, builder = expat.ParserCreate("utf-8"), ET.TreeBuilder()

    def start(tag: str, attributes: dict[str, str]) -> None:
        if tag not in _ATTRIBUTES:
            raise _wrong(f"there is a <{tag}>, which is no element of PML")
        builder.start(tag, attributes)

    def refuse(*_: object) -> None:
        raise _wrong("a schema has no document type")

    parser.StartElementHandler, parser.EndElementHandler = start, builder.end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = builder.data, refuse
    try:
        parser.Parse(text.encode(), True)
    except (expat.ExpatError, ValueError) as error:
        raise _wrong(f"this is no XML: {error}") from error
    return builder.close()


def _top(root: ET.Element) -> Iterator[str | ET.Element]:
    """Yield the schema's texts and elements, with the content of roles in their place."""
    for one in _contents(root):
        if not isinstance(one, str) and one.tag in _ROLES:
            _check(one, one.tag)
            yield from _contents(one)
        else:
            yield one


def _places(element: ET.Element, outer: tuple[str, ...]) -> list[ModuleSpec]:
    """Return the places of a module or union, then the places of the modules within."""
    is_union = element.tag == "union"
    if is_union:
        _check(element, "union")
    pairs = [_module(one, outer) for one in (_elements(element) if is_union else (element,))]
    own = [module for module, _ in pairs]
    places = [ModuleSpec(union=tuple(own))] if is_union else own
    return places + [place for _, within in pairs for place in within]


def _module(element: ET.Element, outer: tuple[str, ...]) -> tuple[ModuleSpec, list[ModuleSpec]]:
    """Return a module with its own text, and the places of the modules within."""
    _check(element, "module")
    if not element.get("name"):
        raise _wrong("a module has a name")
    path = (*outer, element.get("name", ""))
    if len(path) > _MOST_DEPTH:
        raise _wrong(f"a module is within more than {_MOST_DEPTH} others")
    pieces, within = list[str | Parameter](), list[ModuleSpec]()
    for one in _contents(element):
        if not isinstance(one, str) and one.tag in ("module", "union"):
            within += _places(one, path)
        elif within:
            raise _wrong("a module's own text comes before the modules within it")
        else:
            pieces.append(one if isinstance(one, str) else _parameter(one))
    return ModuleSpec(name=".".join(path), parts=tuple(pieces)), within


def _parameter(element: ET.Element) -> Parameter:
    tag = "parameter" if element.tag == "parameter" else "param"
    _check(element, tag)
    length = element.get(_LENGTHS[tag], "")
    if len(element) or not (length.isascii() and length.isdecimal() and len(length) < 6):
        raise _wrong("a parameter has a name, a length in tokens (`len`), and no content")
    return Parameter(element.get("name", ""), int(length), element.get("scaffold", ""))


def _contents(element: ET.Element) -> Iterator[str | ET.Element]:
    """Yield an element's texts and children in order, without texts of only spaces."""
    if element.text and element.text.strip():
        yield element.text
    for child in element:
        yield child
        if child.tail and child.tail.strip():
            yield child.tail


def _elements(element: ET.Element) -> Iterator[ET.Element]:
    for one in _contents(element):
        if isinstance(one, str):
            raise _wrong(f"a {element.tag} has modules, and no text of its own")
        yield one


def _check(element: ET.Element, tag: str) -> None:
    if element.tag != tag:
        raise _wrong(f"there is a <{element.tag}> where a <{tag}> may stand")
    unknown = set(element.keys()) - _ATTRIBUTES[tag]
    if unknown:
        name = min(unknown)
        raise _wrong(f"a <{tag}> has no attribute `{name}`{_REFUSED.get(name, '')}")


def _wrong(message: str) -> BadRequest:
    return BadRequest(message, param="pml")
