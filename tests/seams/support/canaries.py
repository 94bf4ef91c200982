"""Random strings that must not appear anywhere later, and the search for them.

The search finds all forms in which text may be stored. `test_canaries.py` says where to search.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

PAGE = 4096


def canary(prefix: str = "") -> str:
    """Draw 128 random bits as letters and digits that no encoding has to escape."""
    return prefix + secrets.token_hex(16)


def forms(text: str, token_ids: Iterable[int] = ()) -> dict[str, bytes]:
    """Return the byte strings that would reveal `text`, by the name of their form."""
    plain = text.encode()
    ids = np.array([*token_ids])
    packed = {f"token ids, {kind}": ids.astype(kind).tobytes() for kind in ("<i4", "<i8", ">i4")}
    listed = {"token ids, listed": json.dumps(ids.tolist())[1:-1].encode()}
    return {
        "plain": plain,
        "utf-16": text.encode("utf-16-le"),
        "hexadecimal": plain.hex().encode(),
        # For each of the three alignments in base64: the characters that do not depend on
        # neighbouring bytes.
        **{f"base64, {shift}": _base64_core(plain, shift) for shift in range(3)},
        **(packed | listed if len(ids) else {}),
    }


def finds(wanted: Mapping[str, Mapping[str, bytes]], places: Mapping[str, bytes]) -> list[str]:
    """List each of `wanted` (name -> form -> bytes) found in any of `places` (name -> content)."""
    places = {place: _without_empty_pages(content) for place, content in places.items()}
    return [
        f"{name} ({form}) in {place}"
        for name, its_forms in wanted.items()
        for form, needle in its_forms.items()
        for place, content in places.items()
        if needle in content
    ]


def files_of(directory: Path) -> dict[str, bytes]:
    """Return the content of every file under `directory`."""
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def _without_empty_pages(content: bytes) -> bytes:
    """Remove pages of zeros, which fill sparse files and pools. No form contains such a page."""
    pages, rest = divmod(len(content), PAGE)
    if not pages:
        return content
    table = np.frombuffer(content, np.uint64, pages * PAGE // 8).reshape(pages, -1)
    return table[table.any(axis=1)].tobytes() + content[-rest or len(content) :]


def _base64_core(plain: bytes, shift: int) -> bytes:
    whole = base64.b64encode(b"\0" * shift + plain)
    return whole[4 * (shift > 0) : -4]
