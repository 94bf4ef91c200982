"""The timing test of prompts with modules finds a leak only in a cache that tenants share.

The clock is modelled: cached prompts are fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, cast

import pytest

from cli.isolation.reading import ProbePrompt
from cli.isolation.server import ServerUnderTest
from cli.isolation.timing.timed_requests import Timed
from cli.isolation.timing.trial_prompts import PromptsOfModules
from cli.isolation.timing.trials import Trials, taken
from cli.isolation.verdict import Outcome, timing_outcome

LENGTH, SAMPLES = 8, 40


class StoringServer:
    """A server that stores the schemas of at most two tenants, and builds prompts from them."""

    def __init__(self) -> None:
        # texts of modules, first by schema, then by module name
        self.schemas = dict[str, dict[str, str]]()
        self.stored = 0

    async def new_text(self, key: str, length: int) -> ProbePrompt:
        assert key == "victim"
        words = [f"{self.stored}-{at} " for at in range(length)]
        return ProbePrompt([], "".join(word.rjust(12) for word in words))

    def new_ids(self, length: int) -> ProbePrompt:
        return ProbePrompt([7] * length)

    async def store_schema(self, key: str, modules: list[dict[str, Any]]) -> str:
        self.stored += 1
        name = f"{key} {self.stored}"
        [union] = modules
        self.schemas[name] = {one["name"]: one["text"] for one in union["union"]}
        assert len(self.schemas) <= 2
        return name

    async def answered(self, method: str, path: str, key: str) -> tuple[None, str]:
        assert method == "DELETE"
        name = path.removeprefix("/v1/modules/")
        assert name.startswith(key)
        del self.schemas[name]
        return None, ""


class ModelledConnection:
    """A connection that answers fast if the prompt is in its tenant's cache, a set of (namespace,
    text).
    """

    def __init__(self, server: StoringServer, cache: set[str], namespace: str) -> None:
        self._server = server
        self._cache = cache
        self._namespace = namespace

    def timed(self, prompt: ProbePrompt, tokens: int, fields: Mapping[str, Any]) -> Timed:
        assert (len(prompt.ids), tokens) == (4, 1)
        used = fields["ratoon"]["modules"]
        [name] = used["use"]
        key = self._namespace + self._server.schemas[used["schema"]][name]
        is_cached = key in self._cache
        self._cache.add(key)
        return Timed(0.001 if is_cached else 0.002, 0.0, 0)


async def trials_of(namespaces: tuple[str, str]) -> Trials:
    """Time prompts of two tenants whose caches use these namespaces."""
    server, cache = StoringServer(), set[str]()
    prompts = PromptsOfModules(cast("ServerUnderTest", server), "victim", "attacker", LENGTH)
    own, others = (ModelledConnection(server, cache, one) for one in namespaces)
    found = await taken(prompts, own, others, 1, SAMPLES, math.inf, lambda done: None)
    assert found is not None
    assert server.stored > 4, "one schema has too few modules for all trials"
    return found


@pytest.mark.parametrize(
    ("namespaces", "outcome"),
    [(("one", "two"), Outcome.PASSED), (("shared", "shared"), Outcome.LEAKS)],
)
async def test_a_module_that_others_make_faster_leaks(
    namespaces: tuple[str, str], outcome: Outcome
) -> None:
    trials = await trials_of(namespaces)
    finding = trials.finding(LENGTH, attrgetter("first_token_s"))
    assert finding.across.samples == SAMPLES
    assert finding.control.auc == 1.0
    assert timing_outcome(finding) is outcome
