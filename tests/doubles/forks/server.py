"""The fork server of this process. It has imported the modules of all of Ratoon's processes."""

from __future__ import annotations

from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext

IMPORTED = (
    *(
        "cli.main",
        "cli.serving.serve",
        "gateway.startup.main",
        "gateway.startup.process",
        "engine.main",
        "storage.disk.serving",
    ),
    "tests.doubles.forks.process",
    "gateway.router_process.main",
    *("engine.follower.serving", "tests.doubles.engine.engine_process"),
    "cli.operating.admin_client",  # modules of commands that send requests to a server
    # Modules that the others import at their first use.
    *("jinja2.debug", "pydantic.v1", "typer._adapters", "uvicorn.lifespan.off", "encodings.idna"),
    *("typer._click.decorators", "importlib.resources.readers"),
)
# A forked process writes its command over the fork server's command line. The name of this module,
# which does not exist and is skipped, makes that line long enough.
ROOM = "room_for_a_command_" * 500


def fork_server() -> ForkServerContext:
    """Return the context that starts processes by forks; its first use starts the server."""
    context = get_context("forkserver")
    context.set_forkserver_preload([*IMPORTED, ROOM])
    return context


def start() -> None:
    """Start the fork server, for this process and for processes forked from it."""
    fork_server()
    forkserver.ensure_running()


def share() -> None:
    """Use the fork server of the process from which this process was forked.

    `multiprocessing` would check before each start that the server runs, but only the process that
    started the server can check this.
    """
    vars(vars(forkserver)["_forkserver"])["ensure_running"] = lambda: None
