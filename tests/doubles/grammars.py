"""Grammars that are hard on what compiles them."""

from __future__ import annotations

import json

from engine.link.messages import Grammar


def endless() -> Grammar:
    """A schema of 1 kB that keeps the library busy for longer than anybody waited."""
    patterns = [{"type": "string", "pattern": f".*a.{{{n}}}b"} for n in range(20)]
    return Grammar("json_schema", json.dumps({"allOf": patterns}))


def deep() -> Grammar:
    """Rules that need so much of the stack that the process which compiles them breaks."""
    rules = "\n".join(f'r{n}: "a" r{n + 1} | "b"' for n in range(5000))
    return Grammar("lark", f'start: r0\n{rules}\nr5000: "c"')


def huge() -> Grammar:
    """More text than is looked at."""
    return Grammar("regex", "a" * (1 << 20))
