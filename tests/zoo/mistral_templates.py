"""Chat templates made by Mistral's own generator for its published models.

The generator imports three enumerations of its package, which needs an image library. They are
therefore extracted from the package's source, and made importable under the package's name.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.zoo.here import here
from tests.zoo.sources import MISTRAL_COMMON

_ENUMERATIONS = {
    "mistral_common.protocol.instruct.request": {"ReasoningEffort"},
    "mistral_common.tokens.tokenizers.base": {"SpecialTokens", "TokenizerVersion"},
}
_GENERATOR = "mistral_common/integrations/chat_templates/template_generator.py"


@dataclass(frozen=True)
class MistralCommon:
    """The template of the models with a given version, v3 or later, of Mistral's tokenizers."""

    version: str
    thinks: bool = False

    def read(self) -> str:
        root = here(MISTRAL_COMMON)
        stubs = {name: _enumerations(root, name, kept) for name, kept in _ENUMERATIONS.items()}
        with _importable(stubs):
            generator = _executed("zoo_mistral_templates", (root / _GENERATOR).read_text())
            version = stubs["mistral_common.tokens.tokenizers.base"].TokenizerVersion(self.version)
            config = generator.TemplateConfig(
                version=version, thinking_support=self.thinks, use_special_token_variables=True
            )
            template: str = generator.build_chat_template(config)
        return template


def _enumerations(root: Path, name: str, kept: set[str]) -> Any:
    whole = ast.parse((root / f"{name.replace('.', '/')}.py").read_text())
    whole.body = [one for one in whole.body if isinstance(one, ast.ClassDef) and one.name in kept]
    return _executed(name, f"from enum import *\nimport warnings\n{ast.unparse(whole)}")


def _executed(name: str, source: str) -> Any:
    module = ModuleType(name)
    sys.modules[name] = module  # `dataclass` looks up a class's module here
    try:
        exec(compile(source, name, "exec"), module.__dict__)
    finally:
        del sys.modules[name]
    return module


@contextmanager
def _importable(modules: dict[str, Any]) -> Iterator[None]:
    """Make modules importable under the names of packages that are not installed."""
    packages = {".".join(name.split(".")[:n]) for name in modules for n in range(1, 5)}
    standing = {name: ModuleType(name) for name in packages} | modules
    sys.modules.update(standing)
    try:
        yield
    finally:
        for name in standing:
            del sys.modules[name]
