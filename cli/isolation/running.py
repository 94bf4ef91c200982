"""A whole run: the tiers one after the other, the timing test, and a restart if wanted.

Knows: the order of a run, and that everything it created is removed. Does not know: flags, tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from cli.admin_client import AdminClient
from cli.errors import BadSetting
from cli.isolation.asking import Asker
from cli.isolation.cast import Stage
from cli.isolation.cells import PUBLISHED, Cell, Tier, cells_of
from cli.isolation.findings import Finding, absent, not_applicable
from cli.isolation.paired import PairedTest
from cli.isolation.pressure import Pressure
from cli.isolation.record import Halfway, Record, forget_halfway, write_halfway
from cli.isolation.server_facts import ServerFacts, look_at
from cli.isolation.timing import Timing, TimingTest
from cli.isolation.verdict import overall, timing_outcome
from cli.output import utc_now
from cli.progress import progress_bar

_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=120)
_PART = 3  # a prompt of the timing test takes at most this part of the device: 1 / 3
_ABSENT = (
    ("model", "another model", "one server serves one model"),
    ("adapter", "another adapter", "the server has no adapters"),
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a run is to do. `samples` of 0 leaves the timing test out."""

    url: str
    tiers: tuple[Tier, ...]
    samples: int
    timing_tokens: int
    max_fill_tokens: int
    each_entry: bool
    tool_version: str


@dataclass
class Run:
    """One run, or one of the two parts of a run over a restart."""

    wanted: Wanted
    client: AdminClient
    session: aiohttp.ClientSession
    began: str = field(default_factory=utc_now)
    findings: list[Finding] = field(default_factory=list)
    timing: Timing | None = None

    async def whole(self) -> Record:
        """Everything that needs no restart."""
        stage = Stage(self.client)
        try:
            facts = await self._up_to_restart(stage)
        finally:
            await stage.clear()
        return self._record(facts)

    async def up_to_restart(self, path: Path) -> None:
        """The same, then ask what is to be found after a restart; `path` keeps its prompts."""
        stage = Stage(self.client)
        kept = False
        try:
            facts = await self._up_to_restart(stage)
            test = self._test(stage, facts)
            cells = self._cells(Tier.RESTARTED, facts)
            with progress_bar("seeds", len(cells)) as advance:
                seeds = []
                for number, cell in enumerate(cells):
                    seeds.append(await test.seed(cell, number))
                    advance(1)
            write_halfway(
                path,
                Halfway(
                    began=self.began,
                    mark=stage.mark,
                    server=facts,
                    tiers=[*self.wanted.tiers, Tier.RESTARTED],
                    groups=stage.groups,
                    findings=self.findings,
                    timing=self.timing,
                    seeds=seeds,
                    each_entry=self.wanted.each_entry,
                ),
            )
            kept = True
        finally:
            if not kept:
                await stage.clear()

    async def after_restart(self, half: Halfway, path: Path) -> Record:
        """Test what survived the restart; then remove everything of both parts, also `path`."""
        stage = Stage(self.client, half.mark, half.groups)
        self.began, self.timing, self.findings = half.began, half.timing, half.findings
        try:
            await self._check_same(stage, half)
            test = self._test(stage, half.server)
            cells = cells_of(
                Tier.RESTARTED, publishes=half.server.publishes, each_entry=half.each_entry
            )
            with progress_bar("after the restart", len(half.seeds)) as advance:
                for seed in half.seeds:
                    self.findings.append(await test.harvest(cells[seed.cell], seed))
                    advance(1)
        finally:
            await stage.clear()
            forget_halfway(path)
        return self._record(half.server, half.tiers)

    async def _check_same(self, stage: Stage, half: Halfway) -> None:
        member = await stage.tenant(f"{stage.mark}-again")
        now = await look_at(self.client, self.session, self.wanted.url, member)
        if now.fingerprint != half.server.fingerprint:
            raise BadSetting("--after-restart", "another model is served now than before")

    async def _up_to_restart(self, stage: Stage) -> ServerFacts:
        members = [await stage.tenant(f"{stage.mark}-{name}") for name in ("one", "two")]
        facts = await look_at(self.client, self.session, self.wanted.url, members[0])
        self.findings += [absent(*row) for row in (*_ABSENT, *_unpublished(facts))]
        test = self._test(stage, facts)
        for tier in self.wanted.tiers:
            await self._paired(tier, test, facts)
        if self.wanted.samples:
            length = min(self.wanted.timing_tokens, facts.max_model_len // 2, _most_at_once(facts))
            clock = TimingTest(self._asker(facts), members[0], members[1], length)
            with progress_bar("timing", self.wanted.samples) as advance:
                self.timing = await clock.run(self.wanted.samples, lambda: advance(1))
        return facts

    async def _paired(self, tier: Tier, test: PairedTest, facts: ServerFacts) -> None:
        cells = self._cells(tier, facts)
        if not facts.has(tier):
            self.findings += [not_applicable(cell, f"no {tier} tier") for cell in cells]
            return
        with progress_bar(f"paired, {tier}", len(cells)) as advance:
            for cell in cells:
                self.findings.append(await test.run(cell))
                advance(1)

    def _cells(self, tier: Tier, facts: ServerFacts) -> list[Cell]:
        return cells_of(tier, publishes=facts.publishes, each_entry=self.wanted.each_entry)

    def _test(self, stage: Stage, facts: ServerFacts) -> PairedTest:
        asker = self._asker(facts)
        pressure = Pressure(self.client, asker, facts, self.wanted.max_fill_tokens)
        return PairedTest(asker, stage, pressure, facts.block_size)

    def _asker(self, facts: ServerFacts) -> Asker:
        as_operator = self.client.beside_a_tenants_key if facts.always_load else None
        return Asker(self.session, self.wanted.url, facts.model, as_operator=as_operator)

    def _record(self, facts: ServerFacts, tiers: Sequence[str] | None = None) -> Record:
        return Record(
            began=self.began,
            ended=utc_now(),
            server=facts,
            tool_version=self.wanted.tool_version,
            tiers=list(tiers or self.wanted.tiers),
            findings=self.findings,
            timing=self.timing,
            timing_outcome=None if self.timing is None else timing_outcome(self.timing),
            verdict=overall(self.findings, self.timing),
        )


def open_session() -> aiohttp.ClientSession:
    """For the tenants' requests; to be closed."""
    return aiohttp.ClientSession(timeout=_TIMEOUT)


def _unpublished(facts: ServerFacts) -> list[tuple[str, str, str]]:
    if facts.publishes:
        return []
    return [(PUBLISHED, "another tenant", "the server publishes no prefixes")]


def _most_at_once(facts: ServerFacts) -> int:
    return facts.tier_tokens[Tier.DEVICE] // _PART
