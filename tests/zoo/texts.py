"""Texts that were not written for tests: code, HTML, tables, and names in the world's scripts.

The code and the HTML come from the standard library, the names from Babel.
"""

from __future__ import annotations

import argparse
import inspect
import json
import pydoc
from functools import cache

from babel import Locale

_LOCALES = (
    *("am", "ar", "bn", "bo", "cs", "de", "el", "fa", "fr", "gu", "he", "hi", "hy", "ja", "ka"),
    *("km", "ko", "lo", "ml", "mn", "my", "ne", "pa", "pl", "ru", "si", "sv", "ta", "te", "th"),
    *("tr", "ur", "vi", "zh"),
)
_MARKDOWN = """| a | b |
|---|:-:|
| 1 | 2.50 |



* **bold**, `x = {'y': [1, 2]}`
\t1. `~~~`
    2. 100 %"""
_ODD = (
    "e\u0301 \ufb01 \U0001d518 \U0001f469\u200d\U0001f469\u200d\U0001f467 \u200b\ufeff\u00a0 "
    "\u2581\u2581 <0x41> \r\n\r \x00\x07\x1b[0m\x7f\u2028 it's I'LL N'T 0x7fff 1,000,000\u00bd  "
)


@cache
def texts() -> dict[str, str]:
    """Return texts by kind, about 50 kB in all."""
    names = [list(Locale(one).territories.values())[:50] for one in _LOCALES]
    return {
        "code": inspect.getsource(argparse)[:12_000],
        "html": pydoc.HTMLDoc().docmodule(argparse)[:12_000],
        "languages": "\n".join(map(", ".join, names)),
        "markdown": _MARKDOWN,
        "odd": _ODD,
        "json": json.dumps({"a": [1, -2.5e-7, None, True], "é": '\t"\\'}, indent=2),
        "blanks": "  lead  and   more    \t\ttabs \n\n \n  trail   ",
        "blank": " ",
        "word": " word",
    }
