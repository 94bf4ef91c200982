"""The run of a named workload, phase by phase."""

import msgspec

from cli.echo import echo
from cli.errors import BadSetting, CliError
from cli.load.options import LoadFlags
from cli.load.phases import SMALL, WorkloadName, WorkloadSizes, draw_phases, longest
from cli.load.report import LoadReport, make_report, show
from cli.load.sender import LoadTarget
from cli.load.sending.closed_loop import drive
from cli.load.sending.processes import LoadProcesses


class PhaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one phase of a workload."""

    workload: str
    phase: str
    report: LoadReport


def run_workload(
    name: WorkloadName, server: LoadTarget, load: LoadFlags, seed: int, context: int | None
) -> None:
    """Run a workload's phases, and print a table or JSON line at each phase's end.

    Raises BadSetting before anything is sent if a request is longer than the model's `context`.
    """
    phases = draw_phases(name, SMALL if load.small else WorkloadSizes(), load.vocab, seed)
    needed, failed = longest(phases), []
    if context is not None and needed > context:
        hint = "another workload" if load.small else "--small or another workload"
        raise BadSetting(
            "--workload",
            f"{name} has requests of {needed} tokens, and {server.model} takes {context}: {hint}",
        )
    with LoadProcesses(load.processes) as processes:
        for phase in phases:
            outcomes, wall_s = drive(phase, server, processes)
            report = make_report(outcomes, wall_s, seed)
            _print(PhaseReport(workload=name, phase=phase.name, report=report), as_json=load.json)
            failed += [] if report.succeeded else [phase.name]
    if failed:
        raise CliError(f"no request succeeded in {', '.join(failed)}")


def _print(told: PhaseReport, *, as_json: bool) -> None:
    if as_json:
        echo(msgspec.json.encode(told).decode())
    else:
        echo(told.phase)
        show(told.report)
