"""The reading of module schemas in PML, the XML markup of Prompt Cache.

    <schema name="travel">
      You plan journeys.
      <module name="plan">For <param name="days" len="4"/> days.</module>
      <union><module name="miami">...</module><module name="maui">...</module></union>
      <scaffold><module name="fees">...</module><module name="rules">...</module></scaffold>
    </schema>

Text outside of modules is part of every prompt. A text of only spaces is dropped. Other texts keep
the spaces at both ends.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator

import msgspec

from gateway.errors import BadRequest
from gateway.prompts.modules.schema import ModuleSpec, Parameter, SchemaSpec

_ATTRIBUTES = {
    "schema": {"name"},
    "module": {"name"},
    "union": set[str](),
    "scaffold": set[str](),
    "param": {"name", "len"},
}


def schema_of_pml(text: str) -> SchemaSpec:
    """Read a module schema; raise BadRequest for text that is not PML, or has a DTD."""
    if "<!DOCTYPE" in text:
        raise _wrong("a schema has no document type")
    try:
        root = ET.fromstring(text)
    except (ET.ParseError, ValueError) as error:
        raise _wrong(f"this is no XML: {error}") from error
    _check(root, "schema")
    places, scaffolds = list[ModuleSpec](), list[tuple[str, ...]]()
    for one in _contents(root):
        if isinstance(one, str):
            places.append(ModuleSpec(text=one))
        elif one.tag == "scaffold":
            members = [_place(inner) for inner in _elements(one)]
            places += members
            scaffolds.append(tuple(member.name or "" for member in members))
        else:
            places.append(_place(one))
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


def _place(element: ET.Element) -> ModuleSpec:
    if element.tag == "union":
        _check(element, "union")
        return ModuleSpec(union=tuple(_module(one) for one in _elements(element)))
    return _module(element)


def _module(element: ET.Element) -> ModuleSpec:
    _check(element, "module")
    if not element.get("name"):
        raise _wrong("a module has a name")
    pieces = list[str | Parameter]()
    for one in _contents(element):
        pieces.append(one if isinstance(one, str) else _parameter(one))
    return ModuleSpec(name=element.get("name"), parts=tuple(pieces))


def _parameter(element: ET.Element) -> Parameter:
    _check(element, "param")
    length = element.get("len", "")
    if len(element) or not (length.isascii() and length.isdecimal() and len(length) < 6):
        raise _wrong("a parameter has a name, a length `len` in tokens, and no content")
    return Parameter(element.get("name", ""), int(length))


def _contents(element: ET.Element) -> Iterator[str | ET.Element]:
    """Yield an element's texts and children in order, without texts of only spaces."""
    if element.text and element.text.strip():
        yield element.text
    for child in element:
        yield child
        if child.tail and child.tail.strip():
            yield child.tail


def _elements(element: ET.Element) -> Iterator[ET.Element]:
    """Yield the elements of a union or a scaffold, which has no text of its own."""
    for one in _contents(element):
        if isinstance(one, str):
            raise _wrong(f"a {element.tag} has modules, and no text of its own")
        yield one


def _check(element: ET.Element, tag: str) -> None:
    if element.tag != tag:
        raise _wrong(f"there is a <{element.tag}> where a <{tag}> may stand")
    unknown = set(element.keys()) - _ATTRIBUTES[tag]
    if unknown:
        raise _wrong(f"a <{tag}> has no attribute `{min(unknown)}`")


def _wrong(message: str) -> BadRequest:
    return BadRequest(message, param="pml")
