"""Grammars that are hard to compile."""

from __future__ import annotations

import json

from engine.link.messages import Grammar


def endless() -> Grammar:
    """Return a schema of 1 kB that the library practically never finishes to compile."""
    patterns = [{"type": "string", "pattern": f".*a.{{{n}}}b"} for n in range(20)]
    return Grammar("json_schema", json.dumps({"allOf": patterns}))


def deep() -> Grammar:
    """Return rules that need so much stack that the compiling process breaks."""
    rules = "\n".join(f'r{n}: "a" r{n + 1} | "b"' for n in range(5000))
    return Grammar("lark", f'start: r0\n{rules}\nr5000: "c"')


def huge() -> Grammar:
    """Return a grammar with more text than is accepted."""
    return Grammar("regex", "a" * (1 << 20))
