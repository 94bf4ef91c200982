"""`ratoon cluster`: engines on a Ray cluster's machines, which register for gateways to find."""

import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from cli.cluster.actor import EngineReport
from cli.cluster.front import Look, check_gateway_ports, gateway_beside
from cli.cluster.placed import PlacedEngines
from cli.cluster.placing import drain, engine_names, has_ended, machines, ray_at, remove, reports
from cli.cluster.registry import make_state
from cli.cluster.room import RayMachine, check_room, lacking
from cli.cluster.scaler import Scaler
from cli.cluster.settings import ClusterSettings, read_settings
from cli.echo import echo
from cli.errors import BadSetting, ServingFailed
from cli.models.model_check import checked_source
from cli.options.options import Json, argument
from cli.output import print_rows
from cli.serving.link_key import link_key_file

LOOK_S = 1.0
NO_MACHINE = "waiting"

SettingsFile = Annotated[Path, argument("FILE", "The cluster's settings, in YAML.")]
RayAddress = Annotated[
    str,
    typer.Option("--ray-address", help="Ray's HOST:PORT. [dim]\\[default: this machine's][/dim]"),
]
DrainS = Annotated[
    float,
    typer.Option(
        "--drain-s", help="Maximum seconds for running requests, which are then cut off.", min=0.0
    ),
]


def up(file: SettingsFile) -> None:
    """Run engines on the machines of a Ray cluster, and print changes of their states.

    Ray chooses a machine for each engine, and another machine when that one is lost. Engines
    register themselves, and gateways with --find-engines find them. If Ray ran before, Ctrl-C
    leaves the engines running ('ratoon cluster down' ends them). Otherwise Ctrl-C ends the engines
    and Ray. If the file has a section 'gateway', a gateway runs until the command ends.

    Example:

        ratoon cluster up cluster.yaml
    """
    settings = read_settings(file)
    if settings.ray_address is None:
        # checked here, so that an error is raised once and not on every machine
        checked_source(settings.model, settings.engine)
    check_gateway_ports(settings)
    if settings.is_one_machine:
        _make_files(settings)
    stop = threading.Event()
    with ray_at(settings.ray_address) as ray:
        for one in (signal.SIGTERM, signal.SIGINT):  # replaces the handlers that Ray installed
            signal.signal(one, lambda *_: stop.set())
        check_machines(settings, machines(ray))
        if settings.ray_address is None:  # this process started Ray, so no other machine can join
            check_room(settings, machines(ray))
        placed = PlacedEngines(ray, settings)
        for number in range(settings.engines):
            placed.place(number)
        with gateway_beside(settings) as look_at_gateway:
            _watch(ray, settings, placed, stop, look_at_gateway)
        if settings.ray_address is None:
            end_here(ray, settings.engine.process.grace_s)


def status(ray_address: RayAddress = "auto", json: Json = False) -> None:
    """Show the machine and the state of each engine of a cluster.

    Example:

        ratoon cluster status
    """
    with ray_at(ray_address) as ray:
        found = reports(ray, engine_names(ray))
    rows = [_row(number, report) for number, report in found.items()]
    columns = ("engine", "state", "address", "predicted wait", "why")
    print_rows("Engines", columns, rows, _cells, as_json=json)


def down(ray_address: RayAddress = "auto", drain_s: DrainS = 300.0) -> None:
    """End all engines of a cluster: each leaves the gateways and finishes its requests.

    Example:

        ratoon cluster down
    """
    with ray_at(ray_address) as ray:
        numbers = engine_names(ray)
        _end(ray, numbers, drain_s)
    echo(f"Ended {len(numbers)} engines.")


def check_machines(settings: ClusterSettings, found: Sequence[RayMachine]) -> None:
    """Raise BadSetting if engines on several machines would not share the gateways' state."""
    addresses = {one.address for one in found}
    if settings.is_one_machine and len(addresses) > 1:
        raise BadSetting("redis_url", f"Ray has {len(addresses)} machines, which need one to share")


def end_here(ray: Any, grace_s: float, *, settle_s: float = LOOK_S) -> None:
    """End the engines of a Ray that this process started, unless Ray itself has ended meanwhile.

    A signal to all processes of a group or of a systemd unit reaches Ray as well. Ray then needs up
    to `settle_s` seconds to end.
    """
    time.sleep(settle_s)
    if has_ended(ray):
        echo("stopping: Ray was asked to end as well, and its engines end with it")
        return
    echo("stopping: what engines have begun may finish")
    _end(ray, engine_names(ray), grace_s)


def _make_files(settings: ClusterSettings) -> None:
    data_dir, given = Path(settings.data_dir), settings.link_key_file
    make_state(data_dir, settings.shared)
    link_key_file("tcp://any:1", None if given is None else Path(given), data_dir, make=True)


def _watch(
    ray: Any, settings: ClusterSettings, placed: PlacedEngines, stop: threading.Event, gateway: Look
) -> None:
    """Print changes of state and keep the needed number of engines, until `stop` is set.

    Raises ServingFailed if every engine has failed, or the gateway cannot start.
    """
    known: dict[int, str] = {}
    scaler = None if settings.scaling is None else Scaler(ray, placed.place, settings.scaling)
    while not stop.wait(LOOK_S):
        gateway()
        found = placed.reports()
        for number, report in found.items():
            row = _row(number, report)
            if report is None and (lack := lacking(settings, machines(ray))) is not None:
                row["why"] = lack.message
            told = " ".join((f"engine {number}: {row['state']}", *_cells(row)[2::2])).rstrip(" -")
            if known.get(number) != told:
                known[number] = told
                echo(told)
        if found and all(one is not None and one.state == "failed" for one in found.values()):
            raise ServingFailed("no engine can start; why is above")
        if scaler is not None:
            scaler.look(found)


def _end(ray: Any, numbers: list[int], drain_s: float) -> None:
    for number in numbers:
        drain(ray, number)
    give_up = time.monotonic() + drain_s
    left = numbers
    while left and time.monotonic() < give_up:
        found = reports(ray, left)
        # An engine without a machine, or a failed engine, has no requests to drain.
        left = [n for n, one in found.items() if one and one.state not in ("drained", "failed")]
        time.sleep(0.2)
    for number in numbers:
        remove(ray, number)


def _row(number: int, report: EngineReport | None) -> dict[str, Any]:
    if report is None:
        return {"engine": number, "state": NO_MACHINE}
    return {"engine": number, **msgspec.structs.asdict(report)}


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    wait = row.get("wait_s")
    return (
        str(row["engine"]),
        row["state"],
        row.get("address") or "-",
        "-" if wait is None else f"{wait:.1f} s",
        row.get("why", ""),
    )
