"""Chat templates that are compiled and probed once, however many tests load them.

Without this, each test's gateway and each test of templates would load templates again, which took
half of their time.

A compiled template depends on its source alone. The results of a probe also depend on the tokens
and the bound of steps.
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
    """A replacement of `find_traits` that remembers its results."""

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
