"""Chat templates that are compiled and probed once, however many tests load them.

A test's gateway and the tests of templates load templates anew. This took half of their time.

Knows: the source alone decides what is compiled. What a probe finds also depends on the tokens and
the bound of steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest

from gateway.prompts.chats.traits import TemplateTraits
from gateway.prompts.templates import compiled, fitted
from gateway.prompts.templates.compiled import CompiledTemplate
from gateway.prompts.templates.probing import find_traits

KEPT = 32  # number of compiled templates that are kept; consecutive tests use few


class ProbedOnce:
    """`find_traits` that remembers what it found."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], TemplateTraits] = {}

    def __call__(self, template: CompiledTemplate) -> TemplateTraits:
        """Return the traits of a template. Probes it unless an equal template was probed before."""
        key = (template.source, template._most_steps, *sorted(template._tokens.items()))
        if key not in self._found:
            self._found[key] = find_traits(template)
        return self._found[key]


@pytest.fixture(scope="session", autouse=True)
def templates_once() -> Iterator[None]:
    """Compile and probe each template once in the tests whose conftest imports this fixture."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_compiled", lru_cache(KEPT)(compiled._compiled))
        patch.setattr(fitted, "find_traits", ProbedOnce())
        yield
