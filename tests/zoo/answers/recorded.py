"""Requests of official clients to public services, as other projects' tests have recorded them.

The packages contain the tests' cassettes, in the form of vcrpy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml  # type: ignore[import-untyped]

from tests.zoo.here import here
from tests.zoo.sources import Sdist

_CHATS = ("/chat/completions", "/responses", "/messages")
_GEMINI = (":generateContent", ":streamGenerateContent")
# names of the fields of a request that become part of the prompt
_TOLD = ("messages", "contents", "input", "instructions", "system", "systemInstruction")


class Recorded(NamedTuple):
    """A recorded request: its file, its route here, and its body for the model `model`."""

    file: str
    path: str
    body: dict[str, Any]

    def texts(self) -> list[str]:
        """List the texts of the request's messages, without thoughts."""
        return [text for name in _TOLD for text in _texts(self.body.get(name), name)]


def recorded(package: Sdist, model: str) -> list[Recorded]:
    """Read a package's recorded chat requests that were answered with status 200, each once."""
    found: dict[str, Recorded] = {}
    for file in sorted(here(package).rglob("*.yaml")):
        for path, body in _chats(file, model):
            found.setdefault(path + json.dumps(body), Recorded(file.stem, path, body))
    return list(found.values())


def _chats(file: Path, model: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for made in _interactions(file):
        sent = made["request"]
        body = _body(sent)
        path = urlsplit(sent["uri"]).path
        route = next((one for one in _CHATS if path.endswith(one)), None)
        verb = next((one for one in _GEMINI if path.endswith(one)), None)
        if route and "model" in body:
            yield f"/v1{route}", {**body, "model": model}
        elif verb:
            streams = "?alt=sse" if "stream" in verb else ""
            yield f"/v1beta/models/{model}{verb}{streams}", body


def _interactions(file: Path) -> list[Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with file.open(encoding="utf-8") as opened:
        read = yaml.load(opened, Loader=loader)
    made = read.get("interactions") if isinstance(read, dict) else None
    return [one for one in made or () if isinstance(one, dict) and _status(one) == 200]


def _status(made: Mapping[str, Any]) -> int | None:
    """Return the status of the service's answer; None if none was recorded."""
    answer = made.get("response") or {}
    status = answer.get("status_code") or (answer.get("status") or {}).get("code")
    return status if isinstance(status, int) else None


def _body(sent: Mapping[str, Any]) -> dict[str, Any]:
    try:
        body = json.loads(sent.get("body") or "null")
    except (ValueError, TypeError):  # a form, or a file
        return {}
    return body if isinstance(body, dict) else {}


def _texts(value: Any, name: str) -> Iterator[str]:
    """Yield the texts below a field `name`, without those of thoughts and of hosted tools."""
    if isinstance(value, str):
        if name in (*_TOLD, "text", "content", "output"):
            yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one, name)
    elif isinstance(value, dict):
        kind = str(value.get("type"))
        if "thought" in value or "reasoning" in kind or "server" in kind or "web_" in kind:
            return
        for inner, one in value.items():
            yield from _texts(one, inner)
