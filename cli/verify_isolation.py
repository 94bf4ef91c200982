"""`ratoon verify-isolation`: does a running server keep its tenants apart?

Knows: the order of a run's parts, and where results go. Does not know: the tests (`isolation`).
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import typer

from cli.admin_client import AdminClient
from cli.client_options import AdminFlags
from cli.compose import base_url
from cli.errors import BadSetting, CliError
from cli.isolation.findings import Outcome
from cli.isolation.flags import VerifyFlags, chosen_tiers
from cli.isolation.record import Record, read_halfway
from cli.isolation.report import markdown, show
from cli.isolation.running import Run, Wanted, open_session
from cli.output import print_json
from cli.target import admin_target, checked_url


def verify_isolation(admin: AdminFlags, verify: VerifyFlags) -> None:
    """Test a running server: can a tenant learn anything about another tenant's prompts?

    Creates temporary tenants, keys, groups and published prefixes, and removes them at the end.
    Two askers who differ in one thing send the same prompt, through every entry point and with
    its blocks in every tier: the second must get nothing from the cache where the first gets
    everything. Then both are timed: a hit must not be distinguishable from a miss. The exit status
    is 0 only if all of this held and the controls show that a leak would have been noticed.

    Examples: everything that can be tested without a restart; the same with one:

        ratoon verify-isolation --report isolation.md

        ratoon verify-isolation --after-restart half.json --report isolation.md
    """
    wanted = _wanted(admin, verify)
    try:
        record = asyncio.run(_run(admin, verify, wanted))
    except asyncio.CancelledError as stopped:
        raise CliError("stopped by SIGTERM; what it had made is removed") from stopped
    if record is None:
        typer.echo(
            f"Restart the server now, then give the same command again: {verify.after_restart} "
            "holds what it needs, keys included.",
            err=True,
        )
        return
    if verify.report is not None:
        _write(verify.report, markdown(record))
    if admin.json:
        print_json(record)
    else:
        show(record)
    if record.verdict is not Outcome.PASSED:
        raise CliError(f"the verdict is: {record.verdict}")


def _wanted(admin: AdminFlags, verify: VerifyFlags) -> Wanted:
    url = verify.service_url or admin.url or base_url(admin.host, admin.port)
    return Wanted(
        url=checked_url(url),
        tiers=chosen_tiers(verify.tiers),
        samples=verify.samples,
        timing_tokens=verify.timing_tokens,
        max_fill_tokens=verify.max_fill_tokens,
        each_entry=not verify.quick,
        tool_version=version("ratoon"),
    )


async def _run(admin: AdminFlags, verify: VerifyFlags, wanted: Wanted) -> Record | None:
    """The record; None when the server is to be restarted first."""
    url, key = admin_target(admin)
    with _ending_on_sigterm():
        async with AdminClient(url, key) as client, open_session() as session:
            run = Run(wanted, client, session)
            if verify.after_restart is None:
                return await run.whole()
            half = read_halfway(verify.after_restart)
            if half is not None:
                return await run.after_restart(half, verify.after_restart)
            await run.up_to_restart(verify.after_restart)
            return None


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does: what was made is removed."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise BadSetting("--report", str(error)) from error
