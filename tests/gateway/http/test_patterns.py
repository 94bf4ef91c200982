"""No pattern of a request's field accepts a final line break by mistake.

msgspec searches with Python's `re`, whose `$` also matches before a final line break.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import gateway

ROOT = Path(gateway.__file__).parent
SAMPLES = ("a", "A1", "5s", "1.5s")


def patterns() -> Iterator[tuple[str, str]]:
    """Yield each pattern that msgspec checks, with its file."""
    for path in sorted(ROOT.rglob("*.py")):
        if "Meta" not in (source := path.read_text()):
            continue
        for call in ast.walk(ast.parse(source)):
            if not (isinstance(call, ast.Call) and ast.unparse(call.func).endswith("Meta")):
                continue
            for keyword in call.keywords:
                if keyword.arg == "pattern":
                    name = ".".join(("gateway", *path.relative_to(ROOT).with_suffix("").parts))
                    known = vars(importlib.import_module(name))
                    yield str(path), eval(ast.unparse(keyword.value), known)


def test_a_final_line_break_is_refused() -> None:
    found = dict(patterns())
    assert len(found) >= 4
    for path, pattern in found.items():
        right = [text for text in SAMPLES if re.search(pattern, text)]
        assert right, f"{path}: no sample matches {pattern}"
        assert not any(re.search(pattern, text + end) for text in right for end in "\n\0"), path


def test_python_s_end_of_text_is_the_control() -> None:
    assert re.search("^a$", "a\n")
