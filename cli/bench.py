"""`ratoon bench`: sends load to a running server and reports how it did.

Knows: the order of a run. Does not know: the prompts (`workload`), the sending (`load`) or the
numbers (`report`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence

import aiohttp
import msgspec
import typer

from cli.admin_client import error_message, unreachable
from cli.client_options import LoadFlags, TargetFlags
from cli.drive import Server, drive
from cli.errors import CliError, ServerRefused
from cli.load import Outcome, Sender, closed_loop
from cli.output import print_json
from cli.phases import SMALL, Sizes, WorkloadName, draw_phases
from cli.progress import Advance, progress_bar
from cli.report import Report, make_report, show
from cli.target import load_target
from cli.workload import PATHS, Body, draw_bodies


def bench(target: TargetFlags, load: LoadFlags) -> None:
    """Load a running server; report times, tokens/s and the run's cache hit rate.

    A closed loop: each of --concurrency callers sends its next request when its last one has
    ended. All prompts begin with the same --shared-tokens, so that the cache has something to
    find; every run draws new prompts unless --seed is given. TTFT is the time from sending a
    request to its first chunk with content, ITL every gap between two chunks, E2E the time of the
    whole request.

    Example: 200 requests by 16 callers, three quarters of each prompt shared:

        ratoon bench --requests 200 --concurrency 16 --prompt-tokens 1024 --shared-tokens 768

    --workload runs a named workload instead (mixed, tenants, multiturn, ttft-cold, ttft-hot, itl
    or reload) and reports each of its phases.

    The exit status is 1 if no request succeeded.
    """
    url, key = load_target(target)
    seed = secrets.randbits(32) if load.seed is None else load.seed
    if load.workload is not None:
        run_workload(load.workload, url, key, target.served_model, load, seed)
        return
    report = asyncio.run(run_load(url, key, target.served_model, load, seed))
    if load.json:
        print_json(report)
    else:
        show(report)
    if not report.succeeded:
        raise CliError("no request succeeded")


class PhaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of a workload."""

    workload: str
    phase: str
    report: Report


def run_workload(
    name: WorkloadName, url: str, key: str, model: str | None, load: LoadFlags, seed: int
) -> None:
    """Run a workload's phases and print each when it has ended: a table, or a line of JSON."""
    model = model or asyncio.run(_ask_model(url, key))
    server = Server(url, key, model, load.timeout_s)
    failed = []
    for phase in draw_phases(name, SMALL if load.small else Sizes(), load.vocab, seed):
        outcomes, wall_s = drive(phase, server, load.processes)
        report = make_report(outcomes, wall_s, seed)
        if load.json:
            told = PhaseReport(workload=name, phase=phase.name, report=report)
            typer.echo(msgspec.json.encode(told))
        else:
            typer.echo(phase.name)
            show(report)
        failed += [] if report.succeeded else [phase.name]
    if failed:
        raise CliError(f"no request succeeded in {', '.join(failed)}")


async def _ask_model(url: str, key: str) -> str:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        return await first_model(session, url, key)


async def run_load(url: str, key: str, model: str | None, load: LoadFlags, seed: int) -> Report:
    """Run the load against `url` and report it."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=load.timeout_s)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        model = model or await first_model(session, url, key)
        bodies = draw_bodies(load, model, seed)
        sender = Sender(session, url + PATHS[load.endpoint], key)
        with progress_bar("requests", len(bodies)) as advance:
            return await _timed(bodies, load.concurrency, sender, Counted(advance), seed)


async def first_model(session: aiohttp.ClientSession, url: str, key: str) -> str:
    """The name of the model that the server serves; ServerRefused or ServerUnreachable."""
    headers = {"Authorization": f"Bearer {key}"}
    try:
        async with session.get(url + "/v1/models", headers=headers) as response:
            if response.status != 200:
                message = error_message(await response.read(), response.status)
                raise ServerRefused(message, status=response.status)
            models = (await response.json())["data"]
    except (aiohttp.ClientError, TimeoutError) as error:
        raise unreachable(url, error) from error
    return str(models[0]["id"])


async def _timed(
    bodies: Sequence[Body],
    concurrency: int,
    sender: Sender,
    counted: Callable[[Outcome], None],
    seed: int,
) -> Report:
    started_at = time.perf_counter()
    outcomes = await closed_loop(bodies, concurrency, sender.ask, counted)
    return make_report(outcomes, time.perf_counter() - started_at, seed)


class Counted:
    """A progress bar that also shows how many requests have failed."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self._failed = 0

    def __call__(self, outcome: Outcome) -> None:
        """One request has ended."""
        self._failed += outcome.error is not None
        self._advance(1, name=f"requests ({self._failed} failed)" if self._failed else None)
