"""`ratoon top`: a server's activity, updated on one screen."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from cli.echo import echo
from cli.operating.admin_client import AdminClient, with_admin
from cli.operating.cache import STATS
from cli.options.options import AdminFlags
from cli.output import print_json
from cli.tables import TableText
from cli.watching.rates import tables


def top(
    admin: AdminFlags,
    interval_s: Annotated[
        float, typer.Option("--interval-s", help="Seconds between two readings.", min=0.1)
    ] = 2.0,
    once: Annotated[
        bool,
        typer.Option("--once", help="Print one reading, of the time since the engine's start."),
    ] = False,
) -> None:
    """Watch hit rates by tier, tokens a second, the queue, and each tenant, until Ctrl-C.

    In a pipe, and with --json, the state is read once.

    Example:

        ratoon top --once
    """
    console = Console(force_terminal=sys.stdout.isatty())
    live = console.is_terminal and not once and not admin.json

    async def use(client: AdminClient) -> Any:
        if live:
            await watch(console, readings(client, interval_s))
            return None
        return await client.call("GET", STATS)

    with suppress(KeyboardInterrupt):
        stats = with_admin(admin, use)
        if admin.json:
            print_json(stats)
        elif stats is not None:
            for index, table in enumerate(tables(stats, None)):
                echo() if index else None
                table.write(console)


async def readings(client: AdminClient, interval_s: float) -> AsyncIterator[dict[str, Any]]:
    """Yield the engine's counters every `interval_s` s. Raises the errors of `AdminClient.call`."""
    while True:
        yield await client.call("GET", STATS)
        await asyncio.sleep(interval_s)


async def watch(console: Console, stats: AsyncIterator[dict[str, Any]]) -> None:
    """Show each reading in place of the reading before, with the changes between the two."""
    before: dict[str, Any] | None = None
    with Live(console=console, auto_refresh=False) as screen:
        async for now in stats:
            shown = [_fitted(table, console.width) for table in tables(now, before)]
            screen.update(Group(*shown), refresh=True)
            before = now


def _fitted(table: TableText, width: int) -> RenderableType:
    drawn = table.drawn(width)
    style = "bold red" if table.is_alarm else ""
    return Text("\n".join(table.record_lines()), style) if drawn is None else drawn
