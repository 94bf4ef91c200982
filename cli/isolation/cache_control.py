"""The test of cache control: does `/v1/cache`, or a mark, reveal another tenant's prompts?

The first tenant sends a prompt with a mark that keeps it cached for five minutes. Then the other
tenant tries four requests:

    probe    it probes the same tokens, and must find none
    list     it lists its own prefixes, and must see none
    mark     it marks the same tokens for a day: it must reuse none, and the first tenant's mark
             must stay as it is
    delete   it deletes the first tenant's prefix: the answer must equal that for an unknown id, and
             the first tenant must still find the whole prefix

The control of each test is the first tenant, which finds, lists, prolongs and deletes its own
prefix. The eviction test (`eviction.py`) checks that marks do not change what other tenants keep.
"""

from collections.abc import Mapping
from secrets import token_hex

from cli.isolation.cases import IDS
from cli.isolation.fixtures import TenantFixture
from cli.isolation.reading import Reading
from cli.isolation.server import OwnPrefix, ServerUnderTest
from cli.isolation.verdict import Finding, outcome_of
from cli.progress import progress_bar

_PROMPT_BLOCKS = 4.5
_FIVE_MINUTES: Mapping[str, str] = {"prompt_cache_retention": "in_memory"}
A_DAY: Mapping[str, str] = {"prompt_cache_retention": "24h"}


class CacheControlTest:
    """A test with two new tenants.

    The first tenant marks a prompt, and the second tenant must not notice the mark.
    """

    def __init__(self, server: ServerUnderTest, first: TenantFixture, other: TenantFixture) -> None:
        self._server = server
        self._first = first.key
        self._other = other.key
        self._block_size = server.facts.block_size
        self._prompt = server.new_ids(int(_PROMPT_BLOCKS * self._block_size))

    async def run(self) -> list[Finding]:
        """Run the four tests in sequence on one prompt, and return a finding for each."""
        await self._server.ask(self._first, IDS, self._prompt, _FIVE_MINUTES)
        findings = list[Finding]()
        tests = (self._probe, self._list, self._mark, self._delete)
        with progress_bar("cache control", len(tests)) as advance:
            for test in tests:
                findings.append(await test())
                advance(1)
        return findings

    async def _probe(self) -> Finding:
        other, own = await self._found_by(self._other), await self._found_by(self._first)
        return self._finding("another's probe", other.cached_tokens, own)

    async def _list(self) -> Finding:
        seen = sum(one.tokens for one in await self._server.own_prefixes(self._other))
        own, listed = await self._found_by(self._first), await self._only()
        missing = "" if listed is not None else "the first tenant's own list has not one prefix"
        return self._finding("another's list", seen, own, missing)

    async def _mark(self) -> Finding:
        """Test that only the first tenant's own mark changes the first tenant's prefix."""
        before = await self._only()
        reused = (await self._server.ask(self._other, IDS, self._prompt, A_DAY)).cached_tokens
        beside = await self._only()
        own = await self._server.ask(self._first, IDS, self._prompt, A_DAY)
        after = await self._only()
        if before is None or beside is None or after is None:
            return self._finding("another's mark", reused, own, "the first's mark has gone")
        if beside.ttl_s != before.ttl_s:
            reused = max(reused, beside.tokens)
        is_longer = after.ttl_s > beside.ttl_s
        missing = "" if is_longer else "the first's own mark did not prolong it"
        return self._finding("another's mark", reused, own, missing)

    async def _delete(self) -> Finding:
        case, listed = "another's deletion", await self._only()
        if listed is None:
            own = await self._found_by(self._first)
            return self._finding(case, 0, own, "there is nothing to delete")
        unknown = f"prefix_{token_hex(len(listed.id.removeprefix('prefix_')) // 2)}"
        told = await self._server.deleted(self._other, listed.id)
        nothing = await self._server.deleted(self._other, unknown)
        own = await self._found_by(self._first)
        lost = max(listed.tokens - own.cached_tokens, 0)
        if told != nothing:
            lost = max(lost, listed.tokens)
        await self._server.deleted(self._first, listed.id)
        is_gone = (await self._found_by(self._first)).cached_tokens < own.cached_tokens
        missing = "" if is_gone else "the first could not delete it either"
        return self._finding(case, lost, own, missing)

    async def _found_by(self, key: str) -> Reading:
        return await self._server.probe(key, IDS, self._prompt)

    async def _only(self) -> OwnPrefix | None:
        listed = await self._server.own_prefixes(self._first)
        return listed[0] if len(listed) == 1 else None

    def _finding(self, case: str, reused: int, own: Reading, missing: str = "") -> Finding:
        whole = (own.prompt_tokens - 1) // self._block_size * self._block_size
        full = own.is_full(self._block_size) and not missing
        return Finding(
            dimension="cache control",
            case=case,
            outcome=outcome_of(reused, 0, full=full),
            reused=reused,
            may_reuse=0,
            control=f"{own.cached_tokens} of {whole}",
            control_full=full,
            note=missing,
        )
