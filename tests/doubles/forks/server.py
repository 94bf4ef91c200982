"""The fork server of this process: it has imported what engines, gateways and commands import."""

from __future__ import annotations

from multiprocessing import get_context
from multiprocessing.context import ForkServerContext

IMPORTED = (
    *(
        "cli.main",
        "cli.serving.serve",
        "gateway.startup.main",
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
