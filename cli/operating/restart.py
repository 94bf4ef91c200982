"""`ratoon restart`: restarts a server's engines in turn, without losing a request.

The server's supervisor restarts the engines. This command sends the supervisor a signal and
watches.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from cli.echo import echo
from cli.errors import BadSetting, CliError
from cli.operating.admin_client import AdminClient, with_admin
from cli.operating.cache import stats_of
from cli.operating.server_target import running_in
from cli.options.options import AdminFlags
from cli.output import print_answer
from cli.supervision.watch import RESTART_SIGNAL

LOOK_S = 0.5
LATE_LOOKS = 20


def restart(
    admin: AdminFlags,
    wait_s: Annotated[
        float, typer.Option("--wait-s", help="Maximum seconds to wait; 0: no limit.", min=0.0)
    ] = 3600.0,
) -> None:
    """Restart the engines of the server that runs in DATA_DIR, one after the other.

    Each engine first finishes its requests, while the others take all new requests: none is lost if
    there are several engines (--replicas). A single engine takes no requests until it has
    restarted. Run this on the server's machine, as its user.

    Example:

        ratoon restart
    """
    server = running_in(admin.data_dir)
    if server is None:
        raise BadSetting("--data-dir", f"no server runs in {admin.data_dir}")
    if not server.has_supervisor:
        raise BadSetting("--data-dir", "its server is a gateway alone: restart the engine itself")

    async def use(client: AdminClient) -> list[str]:
        before = await _engines(client)
        if not before:
            raise CliError("no engine answers; one that died is started again in any case")
        os.kill(server.pid, RESTART_SIGNAL)
        async with asyncio.timeout(wait_s or None):
            return await _until_all_are_new(client, before)

    try:
        names = with_admin(admin, use)
    except TimeoutError as error:
        raise CliError(f"not done after {wait_s:g} s; the server goes on with it") from error
    print_answer({"restarted": names}, "All engines have been restarted.", as_json=admin.json)


class Absences:
    """Counts, for each engine, of polls at which it was absent. Each late engine is named once."""

    def __init__(self) -> None:
        self._looks = Counter[str]()

    def late(self, away: Iterable[str]) -> list[str]:
        """Return the engines that have now been absent for exactly LATE_LOOKS polls."""
        self._looks.update(names := sorted(away))
        return [name for name in names if self._looks[name] == LATE_LOOKS]


async def _until_all_are_new(client: AdminClient, before: dict[str, str]) -> list[str]:
    known: set[str] = set()
    absences = Absences()
    while True:
        now = await _engines(client)
        new = {name for name, engine_id in now.items() if engine_id != before.get(name)}
        for name in sorted(new - known):
            echo(f"{f'engine {name}'.strip()} has been restarted", err=True)
        known |= new
        for name in absences.late(before.keys() - now.keys()):
            echo(
                f"{f'engine {name}'.strip()} is not back yet: it loads, or cannot start, and then "
                "it is tried again; the server's log says which",
                err=True,
            )
        await _check_none_is_refused(client)
        if before.keys() <= known:
            return sorted(known)
        await asyncio.sleep(LOOK_S)


async def _check_none_is_refused(client: AdminClient) -> None:
    """Raise CliError if a new engine serves another model, as it will never be ready."""
    for name, replica in (await client.health()).get("replicas", {}).items():
        if replica["state"] == "refused":
            raise CliError(
                f"engine {name} is refused, and the others go on: {replica['reason']}; to serve "
                "other files, stop the server and start it again"
            )


async def _engines(client: AdminClient) -> dict[str, str]:
    """Map names of answering engines to their ids. A single engine's name is ""."""
    stats: dict[str, Any] | None = await stats_of(client)
    if stats is None:
        return {}
    if not stats["replicas"]:
        return {"": stats["engine_id"]}
    return {
        one["name"]: one["counted"]["engine_id"]
        for one in stats["replicas"]
        if one["counted"] is not None
    }
