"""Published chat templates in the zoo's packages."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from tests.zoo.here import here
from tests.zoo.sources import LLAMA_CPP, OLLAMA, TRL, VLLM, Tarball

_ENTRY = re.compile(
    r"""model: "library/([^"]+)",\s*gguf:\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
)


class Template(Protocol):
    """A chat template in a package."""

    def read(self) -> str:
        """Read the template's source; skip the test if its package is missing."""
        ...


@dataclass(frozen=True)
class Trl:
    """A file of trl, which contains a model's template byte by byte."""

    name: str

    def read(self) -> str:
        path = here(TRL) / "trl" / "chat_templates" / f"{self.name}.jinja"
        return path.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Ollama:
    """A template in the GGUF file of a model from Ollama's library."""

    model: str

    def read(self) -> str:
        return _library(here(OLLAMA) / "src" / "chat-template-automap.ts")[self.model]


@dataclass(frozen=True)
class Configured:
    """A template in the tokenizer_config.json of a tokenizer."""

    package: Tarball

    def read(self) -> str:
        config = json.loads((here(self.package) / "models" / "tokenizer_config.json").read_text())
        template: str = config["chat_template"]
        return template


@dataclass(frozen=True)
class LlamaCpp:
    """A template that llama.cpp's tests use; only `make test-zoo` has it."""

    name: str

    def read(self) -> str:
        directory = here(LLAMA_CPP) / "vendor" / "llama.cpp" / "models" / "templates"
        return (directory / f"{self.name}.jinja").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Vllm:
    """vLLM's template for models whose own template shows no tools; only `make test-zoo` has it."""

    name: str

    def read(self) -> str:
        [path] = here(VLLM).rglob(f"tool_chat_template_{self.name}.jinja")
        return path.read_text(encoding="utf-8")


@cache
def _library(path: Path) -> dict[str, str]:
    return {
        model: _text_of(literal)
        for model, literal in _ENTRY.findall(path.read_text(encoding="utf-8"))
    }


def _text_of(literal: str) -> str:
    """Return the text of a JavaScript literal, which differs from JSON in its quotes."""
    inner = literal[1:-1]
    if literal.startswith("'"):
        inner = inner.replace("\\'", "'").replace('"', '\\"')
    text: str = json.loads(f'"{inner}"')
    return text
