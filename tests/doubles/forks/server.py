"""The fork server of this process: it has imported what engines, gateways and commands import."""

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
    # What these import when they first need it.
    *("jinja2.debug", "pydantic.v1", "typer._adapters", "uvicorn.lifespan.off", "encodings.idna"),
)
# A process shows its command where the kernel has put that of its fork server, which so is long:
# a module that is not there is left out.
ROOM = "room_for_a_command_" * 500


def fork_server() -> ForkServerContext:
    """What starts processes by forking it. It is itself started for the first of them."""
    context = get_context("forkserver")
    context.set_forkserver_preload([*IMPORTED, ROOM])
    return context


def start() -> None:
    """Start it, for this process and for those that are forked from it."""
    fork_server()
    forkserver.ensure_running()


def share() -> None:
    """Use the fork server of the process that this one was forked from.

    Only that process can ask whether it runs, which `multiprocessing` would do here before each
    start.
    """
    vars(vars(forkserver)["_forkserver"])["ensure_running"] = lambda: None
