"""The test of data that is stored under names finds the one fault of each server, and passes a
server without a fault.
"""

from __future__ import annotations

from typing import Any

import pytest

from cli.isolation.fixtures import TenantFixture
from cli.isolation.reading import ProbePrompt
from cli.isolation.server import ServerFacts, ServerUnderTest
from cli.isolation.stored import KINDS, StoredTest
from cli.isolation.verdict import Outcome

ADA, BOB = TenantFixture("ada", "key-a"), TenantFixture("bob", "key-b")
NOT_FOUND = (None, "404 not found")


def answer_with(cached: int) -> dict[str, Any]:
    """Return an answer that every dialect's client can read, with `cached` cached tokens."""
    openai = {"prompt_tokens_details": {"cached_tokens": cached}}
    return {
        "usage": {**openai, "cache_read_input_tokens": cached},
        "usageMetadata": {"cachedContentTokenCount": cached},
    }


class NamingServer(ServerUnderTest):
    """A server that stores Ada's data correctly, except for the one fault `wrong`."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        self.kept = set[str]()
        self.facts = ServerFacts(
            version="1",
            model="m",
            max_model_len=512,
            fingerprint="f",
            block_size=16,
            tier_tokens={},
        )

    async def new_text(self, key: str, length: int, opening: str = "") -> ProbePrompt:
        return ProbePrompt(list(range(length)), "words")

    async def answered(
        self, method: str, path: str, key: str, body: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any] | None, str]:
        named = next((one for one in self.kept if one in f"{path} {body}"), None)
        is_own = key == ADA.key
        if method == "GET":
            return {"data": sorted(self.kept) if is_own or self.wrong == "list" else []}, ""
        if method == "DELETE":
            if named is not None and (is_own or self.wrong == "deletion"):
                self.kept.remove(named)
                return {}, ""
            return (None, "403 not yours") if named and self.wrong == "deny" else NOT_FOUND
        if "words" in f"{body}":
            if self.wrong == "store":
                return None, "400 not allowed"
            new = f"{len(self.kept)}cafecafe"
            self.kept.add(new)
            return {"id": new, "name": new}, ""
        if named is not None and (is_own or self.wrong == "use"):
            return answer_with(0 if self.wrong == "cold" else 64), ""
        return (None, "400 continued") if named and self.wrong == "hint" else NOT_FOUND


async def outcomes(wrong: str) -> set[tuple[str, Outcome]]:
    findings = await StoredTest(NamingServer(wrong), ADA, BOB).run()
    return {(one.case.rsplit(": ")[1], one.outcome) for one in findings}


async def test_a_server_that_tells_nothing_passes() -> None:
    findings = await StoredTest(NamingServer(), ADA, BOB).run()
    assert len(findings) == 7
    assert {one.outcome for one in findings} == {Outcome.PASSED}
    assert {(one.reused, one.control) for one in findings} == {(0, "64 of 64")}


@pytest.mark.parametrize(
    ("wrong", "operation"),
    [
        ("use", "use"),
        ("hint", "use"),
        ("list", "list"),
        ("deletion", "deletion"),
        ("deny", "deletion"),
    ],
)
async def test_a_server_that_tells_one_thing_leaks(wrong: str, operation: str) -> None:
    assert (operation, Outcome.LEAKS) in await outcomes(wrong)


async def test_without_its_control_a_cell_shows_nothing() -> None:
    assert {outcome for _, outcome in await outcomes("cold")} == {Outcome.INCONCLUSIVE}


async def test_a_server_that_stores_nothing_has_nothing_to_test() -> None:
    findings = await StoredTest(NamingServer("store"), ADA, BOB).run()
    assert {one.outcome for one in findings} == {Outcome.NOT_APPLICABLE}
    assert len(findings) == len(KINDS)
