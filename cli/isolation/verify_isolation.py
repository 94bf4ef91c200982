"""`ratoon verify-isolation`: tests whether a running server isolates its tenants."""

import asyncio
import math
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import msgspec

from cli.echo import echo
from cli.errors import BadSetting, CliError, ServerRefused
from cli.isolation.cache_control import CacheControlTest
from cli.isolation.cases import TierCase
from cli.isolation.eviction import EvictionFinding, EvictionTest
from cli.isolation.fixtures import Fixtures, TenantFixture
from cli.isolation.paired import PairedTest
from cli.isolation.recording import MODULES, TIMING, record_of, untested
from cli.isolation.report import Record, markdown, show
from cli.isolation.server import ServerFacts, ServerUnderTest
from cli.isolation.stored import STORED, StoredTest
from cli.isolation.timing.time_tenants import TimingFindings, time_tenants
from cli.isolation.timing.trials import TimingFinding
from cli.isolation.verdict import Finding, Outcome
from cli.operating.admin_client import AdminClient
from cli.operating.server_target import admin_target, checked_url, service_url
from cli.options.flags import plain_field
from cli.options.options import AdminFlags, server_field
from cli.output import print_result, utc_now

_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=120)
_TIERS = [TierCase.DEVICE, TierCase.HOST, TierCase.DISK, TierCase.EVICTED]
_test = partial(plain_field, rich_help_panel="Tests")
_ABSENT = {"model": "one server serves one model", "adapter": "its tenants have no adapters"}
REPORT = "/admin/isolation/report"
# The time limit in seconds of all tests of --quick, without the cleanup. The other numbers are the
# shares of the limit after which the paired tests, the timing test and the timing of prompt modules
# end.
_QUICK_S, _UNTIL_COMPARED, _UNTIL_TIMED, _UNTIL_MODULES = 75.0, 0.6, 0.8, 0.9
# a prompt of the timing test and its answer take at most a third of the device's KV blocks
_PART = 3
_BAD_REQUEST = 400


@dataclass(frozen=True, slots=True)
class VerifyFlags:
    """The flags that choose the tests and the report's file."""

    service_url: str | None = server_field(
        None,
        "URL of the tenants' routes, if the admin routes have another port. [dim]\\[default: "
        "--url, or http://RATOON_HOST:RATOON_PORT][/dim]",
    )
    tiers: str = _test(",".join(_TIERS), help="Tiers to test, with commas.")
    samples: int = _test(
        2000, help="Samples of each class in the timing test; 0: no timing test.", min=0
    )
    timing_tokens: int = _test(512, help="Tokens of each prompt of the timing test.", min=32)
    eviction_trials: int = _test(
        4,
        help="Trials of the eviction test for each of five numbers of "
        "tokens; fewer than two show nothing. 0: no such test.",
        min=0,
    )
    max_fill_tokens: int = _test(
        2_000_000,
        help="Maximum prompt tokens to push a cell's blocks into a lower tier, or to fill the "
        "device in an eviction trial.",
        min=1,
    )
    quick: bool = _test(
        False,
        "--quick",
        help="Test one entry point instead of all six, within two minutes; the report says "
        "what was left out.",
    )
    within_s: float | None = _test(
        None,
        help="Seconds until the end, without clean-up and restart. [dim]\\[default: none; with "
        "--quick 75][/dim]",
        min=1.0,
        show_default=False,
    )
    restart: bool = _test(
        False, "--restart", help="Also test a restart: ask for one at the end, and wait for it."
    )
    report: Path | None = _test(None, help="Also write the report to this file, as Markdown.")


def verify_isolation(admin: AdminFlags, verify: VerifyFlags) -> None:
    """Test a running server: can a tenant learn anything about another tenant's prompts?

    Creates temporary tenants, keys, groups and published prefixes, and removes them at the end. At
    every entry point and in every tier, a request that differs from an earlier request in one
    property must find none of that request's blocks. A tenant must not probe, list, use, prolong or
    delete what another has marked or stored. Gaps between tokens must not reveal hits, and
    evictions must not reveal how many tokens others sent. Exits with 0 only if all of this held,
    the controls show that a leak would have been noticed, and there was time for nine tests in ten.

    Examples: all tests without a restart; the same with a restart, for which the command asks:

        ratoon verify-isolation --report isolation.md

        ratoon verify-isolation --restart --report isolation.md
    """
    tiers = chosen_tiers(verify.tiers)
    try:
        record = asyncio.run(_run(admin, verify, tiers))
    except asyncio.CancelledError as stopped:
        raise CliError("stopped by SIGTERM; what it had made is removed") from stopped
    if verify.report is not None:
        try:
            verify.report.write_text(markdown(record))
        except OSError as error:
            raise BadSetting("--report", str(error)) from error
    print_result(record, show, as_json=admin.json)
    if record.verdict is not Outcome.PASSED:
        raise CliError(f"the verdict is: {record.verdict}")


async def _run(admin: AdminFlags, flags: VerifyFlags, tiers: tuple[TierCase, ...]) -> Record:
    _stop_on_sigterm()
    began_at = time.monotonic()
    within = flags.within_s or (_QUICK_S if flags.quick else math.inf)
    url = checked_url(flags.service_url or admin.url or service_url(admin))
    async with (
        AdminClient(*admin_target(admin)) as client,
        aiohttp.ClientSession(timeout=_TIMEOUT) as session,
        AsyncExitStack() as stack,
    ):
        server, began = ServerUnderTest(client, session, url), utc_now()
        first, second = await Fixtures(server, stack).pair()
        await server.identify(first.key)
        paired = PairedTest(server, flags.max_fill_tokens, each_entry=not flags.quick)
        findings = await _compared(server, paired, tiers, began_at, within)
        timing = await _timed(server, first, second, flags, began_at + _UNTIL_TIMED * within)
        if timing is not None and server.facts.has_modules:
            until = began_at + _UNTIL_MODULES * within
            modules = await _timed_modules(server, first, second, flags, findings, until)
            timing = msgspec.structs.replace(timing, modules=modules)
        eviction = None
        if flags.eviction_trials and _device_tokens(server) <= flags.max_fill_tokens:
            test = EvictionTest(server, first, second)
            eviction = await test.run(flags.eviction_trials, began_at + within)
        elif flags.eviction_trials:
            why = f"it takes {_device_tokens(server)} tokens to fill the device"
            findings.append(untested("eviction", "another tenant", Outcome.INCONCLUSIVE, why))
        if flags.restart:
            findings += await paired.over_restart()
            tiers = (*tiers, TierCase.RESTARTED)
        left_out = _left_out(server.facts, flags, findings, timing, eviction)
        record = record_of(server.facts, began, tiers, findings, timing, eviction, left_out)
        await _hand_in(client, record, flags.samples)
    return record


async def _compared(
    server: ServerUnderTest,
    paired: PairedTest,
    tiers: Sequence[TierCase],
    began_at: float,
    within: float,
) -> list[Finding]:
    """Run the paired test in each tier, and the tests of cache control and of stored texts.

    Each tier has an equal part of the paired test's time.
    """
    findings = [
        untested(dimension, f"another {dimension}", Outcome.NOT_APPLICABLE, why)
        for dimension, why in _ABSENT.items()
    ]
    for number, tier in enumerate(tiers, 1):
        until = began_at + _UNTIL_COMPARED * within * number / len(tiers)
        findings += await paired.in_tier(tier, until)
    dimension = "cache control"
    left = began_at + _UNTIL_TIMED * within - time.monotonic()
    try:
        async with asyncio.timeout(None if math.isinf(left) else left), AsyncExitStack() as short:
            new = await Fixtures(server, short).pair()
            findings += await CacheControlTest(server, *new).run()
            dimension = STORED
            return findings + await StoredTest(server, *new).run()
    except TimeoutError:
        why = "it did not end in time"
        return [*findings, untested(dimension, "all", Outcome.LEFT_OUT, why)]


async def _timed(
    server: ServerUnderTest,
    first: TenantFixture,
    second: TenantFixture,
    flags: VerifyFlags,
    until: float,
) -> TimingFindings | None:
    if not flags.samples:
        return None
    length = _timed_tokens(server, flags)
    return await time_tenants(server, first, second, length, flags.samples, until)


async def _timed_modules(
    server: ServerUnderTest,
    first: TenantFixture,
    second: TenantFixture,
    flags: VerifyFlags,
    findings: list[Finding],
    until: float,
) -> TimingFinding | None:
    """Time prompts of prompt modules. If the tenants' parts have no room, add a finding."""
    length = _timed_tokens(server, flags)
    try:
        timed = await time_tenants(
            server, first, second, length, flags.samples, until, of_modules=True
        )
    except ServerRefused as refusal:
        if refusal.status != _BAD_REQUEST:
            raise
        why = f"the server refused modules of {length} tokens"
        findings.append(untested(MODULES, "another tenant", Outcome.INCONCLUSIVE, why))
        return None
    return None if timed is None else timed.first_token


def _timed_tokens(server: ServerUnderTest, flags: VerifyFlags) -> int:
    most = min(server.facts.max_model_len // 2, _device_tokens(server) // _PART)
    most -= server.facts.block_size  # room for the answer
    return min(flags.timing_tokens, max(most, server.facts.block_size))


def _left_out(
    facts: ServerFacts,
    flags: VerifyFlags,
    findings: Sequence[Finding],
    timing: TimingFindings | None,
    eviction: EvictionFinding | None,
) -> list[str]:
    cut = [one for one in findings if one.outcome is Outcome.LEFT_OUT]
    cells = Counter(one.tier for one in cut if one.tier != "any")
    lines = [f"{count} cells of the paired test, {tier}" for tier, count in cells.items()]
    lines += [f"the test of {one.dimension}" for one in cut if one.tier == "any"]
    timed, modules = (None, None) if timing is None else (timing.first_token, timing.modules)
    lines += _missing_samples(timed, flags.samples, TIMING)
    if facts.has_modules and not any(one.dimension == MODULES for one in findings):
        lines += _missing_samples(modules, flags.samples, MODULES)
    is_inconclusive = any(one.dimension == "eviction" for one in findings)
    if flags.eviction_trials and eviction is None and not is_inconclusive:
        lines.append("the eviction test")
    return lines


def _missing_samples(timing: TimingFinding | None, wanted: int, test: str) -> Iterator[str]:
    taken = 0 if timing is None else timing.across.samples
    if taken < wanted:
        yield f"{wanted - taken} of {wanted} samples of the {test}"


def _device_tokens(server: ServerUnderTest) -> int:
    return server.facts.tier_tokens[TierCase.DEVICE]


async def _hand_in(client: AdminClient, record: Record, samples: int) -> None:
    sent = {"verdict": record.verdict, "samples": samples, "report": markdown(record)}
    try:
        await client.call("PUT", REPORT, sent)
    except CliError as error:
        echo(f"The server does not keep the report: {error}", err=True)


def _stop_on_sigterm() -> None:
    """Handle SIGTERM like Ctrl-C, so that temporary tenants are removed."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def chosen_tiers(text: str) -> tuple[TierCase, ...]:
    """Read the tiers of `--tiers`, in the order of testing. Raises BadSetting for other words."""
    words = {word.strip() for word in text.split(",") if word.strip()}
    if not words or words - set(_TIERS):
        raise BadSetting("--tiers", f"'{text}' is not a list of {', '.join(_TIERS)}")
    return tuple(tier for tier in _TIERS if tier in words)
