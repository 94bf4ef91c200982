"""Texts of vLLM's own tests of parsers give the calls that these tests expect.

A module of these tests is executed without its imports; any name that is then missing is a stub.
Only the cases of `parametrize` are used.
"""

from __future__ import annotations

import ast
import builtins
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.turn_formats.choose import tool_format
from gateway.turn_formats.pieces import TextPiece
from gateway.turn_formats.turn_format import ToolSpec
from tests.gateway.turn_formats.turns import calls_of, read
from tests.zoo.here import here
from tests.zoo.sources import VLLM

pytestmark = pytest.mark.zoo

FORMATS = {
    "ernie45_moe": "hermes",
    "gigachat3": "gigachat31",
    "hunyuan_a13b": "apriel",
    "jamba": "apriel",
    "kimi_k2": "kimi_k2",
    "lfm2": "lfm2",
    "llama4_pythonic": "pythonic",
    "olmo3": "olmo3",
    "pythonic": "pythonic",
    "qwen3coder": "qwen3_coder",
    "step3p5": "qwen3_coder",
    "xlam": "llama3_json",
}
# Parts of texts that Ratoon reads otherwise: the form of another version; a text after a call; code
# with quotes that end it too early; forms that the family's template does not have.
OTHERWISE = (
    *("function call<|role_sep|>", "Thank you!", "mul_symbol"),
    *("</think>[", "\n```json\n[", "[TOOL_CALLS]", "<tool_call>[{"),
)


class Stub:
    """A record of the arguments that a name without an import was called with."""

    def __init__(self, *_: Any, **given: Any) -> None:
        self.given = given

    def __class_getitem__(cls, _: Any) -> type[Stub]:
        return cls

    def __getattr__(self, name: str) -> Any:
        if name in self.given:
            return self.given[name]
        raise AttributeError(name)

    def __call__(self, *_: Any, **__: Any) -> Stub:
        return self


class Names(dict[str, Any]):
    """A module's names. Unknown names are stubs."""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            raise KeyError(name)
        return Stub


def executed(path: Path) -> Names:
    """Execute a module without its imports, which need vLLM."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kept = [one for one in tree.body if not isinstance(one, ast.Import | ast.ImportFrom)]
    # without the classes, since some inherit from tests of vLLM
    tree.body = [one for one in kept if not isinstance(one, ast.ClassDef) or not one.bases]
    names = Names({"json": json, "pytest": pytest, "Any": Any, "__name__": path.stem})
    exec(compile(tree, str(path), "exec"), names)
    return names


def cases_of(names: Names) -> Iterator[dict[str, Any]]:
    """Yield the arguments of each case with a model's text."""
    classes = [one for one in names.values() if isinstance(one, type) and one is not Stub]
    for found in (*names.values(), *(one for cls in classes for one in vars(cls).values())):
        marks = getattr(found, "pytestmark", ()) if callable(found) else ()
        for mark in (one for one in marks if one.name == "parametrize"):
            given = {**dict(zip(("argnames", "argvalues"), mark.args, strict=False)), **mark.kwargs}
            named = given["argnames"]
            fields = named.split(",") if isinstance(named, str) else named
            for values in given["argvalues"]:
                values = getattr(values, "values", values)
                values = values if isinstance(values, list | tuple) else [values]
                case = dict(zip(map(str.strip, fields), values, strict=False))
                if isinstance(case.get("model_output"), str):
                    yield case


def expected(case: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the calls that a case expects."""
    if "expected_names" in case:
        return list(zip(case["expected_names"], case["expected_args_list"], strict=True))
    functions = [one.given.get("function", one) for one in case.get("expected_tool_calls", ())]
    return [(one.given["name"], json.loads(one.given["arguments"] or "{}")) for one in functions]


def type_of(value: Any) -> dict[str, Any]:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return {"type": kinds.get(type(value), "object")} if value is not None else {}


def specs_of(calls: list[tuple[str, Any]]) -> list[ToolSpec]:
    """Make tools that these calls fit."""
    named: dict[str, dict[str, Any]] = {}
    for name, arguments in calls:
        known = named.setdefault(name, {})
        known |= {key: type_of(value) for key, value in arguments.items()}
    return [ToolSpec(name, {"type": "object", "properties": one}) for name, one in named.items()]


@pytest.mark.parametrize("name", FORMATS)
def test_calls_are_those_that_vllm_expects(name: str) -> None:
    path = here(VLLM) / "tests" / "tool_parsers" / f"test_{name}_tool_parser.py"
    if not path.exists():
        pytest.skip("build/zoo has an earlier selection of vLLM's files: remove it")
    cases = list(cases_of(executed(path)))
    assert cases
    read_format = tool_format(None, FORMATS[name])
    assert read_format is not None
    for case in cases:
        written, calls = case["model_output"].removesuffix("</s>"), expected(case)
        if any(part in written for part in OTHERWISE):
            continue
        for parts in ([written], list(written)):
            pieces = read(read_format.parser(specs_of(calls)), parts)
            assert calls_of(pieces) == calls, written
        said = "".join(one.text for one in pieces if isinstance(one, TextPiece))
        if "expected_content" in case:
            assert said.strip() == (case["expected_content"] or "").strip()
