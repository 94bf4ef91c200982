"""The cache-control test of `verify-isolation` finds the one fault of each server, and passes a
server without a fault.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cli.isolation.cache_control import A_DAY, CacheControlTest
from cli.isolation.cases import EntryPoint
from cli.isolation.fixtures import TenantFixture
from cli.isolation.reading import ProbePrompt, Reading
from cli.isolation.server import OwnPrefix, ServerFacts, ServerUnderTest
from cli.isolation.verdict import Outcome

ADA, BOB = TenantFixture("ada", "key-a"), TenantFixture("bob", "key-b")
PREFIX = OwnPrefix(id="prefix_" + 32 * "a", tokens=64, ttl_s=300.0)
NOT_FOUND = (404, "there is no such prefix")


class TellingServer(ServerUnderTest):
    """A server that caches Ada's prompt correctly, except for the one fault `wrong`."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        self.kept: OwnPrefix | None = None
        self.facts = ServerFacts(
            version="1",
            model="m",
            max_model_len=512,
            fingerprint="f",
            block_size=16,
            tier_tokens={},
        )

    def new_ids(self, length: int) -> ProbePrompt:
        return ProbePrompt(list(range(length)))

    async def ask(
        self,
        key: str,
        entry: EntryPoint,
        prompt: ProbePrompt,
        fields: Mapping[str, object] | None = None,
    ) -> Reading:
        found = self._found(key == ADA.key or self.wrong == "reused")
        ttl_s = 86400.0 if fields == A_DAY else 300.0
        marks = self.kept is None or self.wrong != "no effect"
        if marks if key == ADA.key else self.wrong == "prolonged":
            self.kept = OwnPrefix(id=PREFIX.id, tokens=64, ttl_s=ttl_s)
        return found

    async def probe(self, key: str, entry: EntryPoint, prompt: ProbePrompt) -> Reading:
        return self._found(key == ADA.key or self.wrong == "probed")

    async def own_prefixes(self, key: str) -> list[OwnPrefix]:
        sees = key == ADA.key or self.wrong == "listed"
        return [self.kept] if sees and self.kept is not None else []

    async def deleted(self, key: str, prefix_id: str) -> tuple[int, str]:
        exists = self.kept is not None and self.kept.id == prefix_id
        if exists and (key == ADA.key or self.wrong == "deleted"):
            self.kept = None
            return 200, ""
        return (403, "not yours") if exists and self.wrong == "refused" else NOT_FOUND

    def _found(self, sees: bool) -> Reading:
        return Reading(72, 64 if sees and self.kept is not None else 0)


async def outcomes(wrong: str) -> dict[str, Outcome]:
    findings = await CacheControlTest(TellingServer(wrong), ADA, BOB).run()
    return {one.case.removeprefix("another's "): one.outcome for one in findings}


async def test_a_server_that_tells_nothing_passes() -> None:
    findings = await CacheControlTest(TellingServer(), ADA, BOB).run()
    assert {one.outcome for one in findings} == {Outcome.PASSED}
    assert {(one.reused, one.control) for one in findings} == {(0, "64 of 64")}


@pytest.mark.parametrize(
    ("wrong", "case"),
    [
        ("probed", "probe"),
        ("listed", "list"),
        ("reused", "mark"),
        ("prolonged", "mark"),
        ("deleted", "deletion"),
        ("refused", "deletion"),
    ],
)
async def test_what_is_told_is_found(wrong: str, case: str) -> None:
    found = await outcomes(wrong)
    assert [name for name, one in found.items() if one is Outcome.LEAKS] == [case]


async def test_where_marks_do_nothing_nothing_is_shown() -> None:
    found = await outcomes("no effect")
    assert found["mark"] is Outcome.INCONCLUSIVE
    assert found["probe"] is Outcome.PASSED
