"""`ratoon simulate --drafts`: the share of drafted tokens that are accepted, by source and load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from cli.errors import BadSetting
from cli.output import print_table
from cli.plan.machine import MachineModel, ModelShape
from cli.simulation.draft_replay import DraftReplay, LoadCounts
from cli.simulation.drafted_texts import DraftedText

LOADS = (1, 8, 32)


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The drafts of one source. The rate is the accepted share of the drafted tokens."""

    drafts: int
    drafted: int
    accepted: int
    acceptance_rate: float
    accepted_length: float


@dataclass(frozen=True, slots=True)
class DraftedLoad:
    """The results of a replay with `rows` texts at once, in one of several runs over all texts."""

    rows: int
    run: int
    tokens: int
    tokens_per_step: float
    acceptance_rate: float
    speed: float
    # Median CPU times in microseconds, over steps of all rows; 0 if no step had all rows.
    drafting_us: float  # time for drafting while the device waits
    preparing_us: float  # time for preparing the next drafts while the device computes
    sources: dict[str, SourceReport]


def replay_drafts(
    texts: Sequence[DraftedText],
    runs: int,
    device_tokens: int,
    shape: ModelShape,
    machine: MachineModel,
) -> list[DraftedLoad]:
    """Replay the texts with each load, `runs` times one after another. Raises BadSetting.

    Each load begins with an empty cache. Predicted step times do not count reads of KV.
    """
    reports = []
    for rows in LOADS:
        replay = DraftReplay(device_tokens, partial(_step_seconds, shape, machine))
        for run in range(1, runs + 1):
            counts = replay.run(texts, rows)
            if counts is None:
                raise BadSetting("--device-tokens", f"{rows} texts at once do not fit")
            reports.append(_report(counts, run))
    return reports


def show_drafts(file: Path, reports: Sequence[DraftedLoad]) -> None:
    """Print a row for each load and source."""
    heads = ("rows", "run", "source", "drafted", "accepted", "rate", "length", "a step", "speed")
    cells = list[tuple[object, ...]]()
    for one in reports:
        for name, source in one.sources.items():
            counts = (source.drafted, source.accepted, f"{source.acceptance_rate:.1%}")
            cells.append(
                (one.rows, one.run, name, *counts, f"{source.accepted_length:.2f}", "", "")
            )
        counts = (_sum(one, "drafted"), _sum(one, "accepted"), f"{one.acceptance_rate:.1%}")
        ends = (f"{one.tokens_per_step:.2f}", f"{one.speed:.2f}")
        cells.append((one.rows, one.run, "all", *counts, "", *ends))
    print_table(f"{file.name}: drafted and accepted tokens", heads, cells)


def _sum(report: DraftedLoad, name: str) -> int:
    return sum(getattr(source, name) for source in report.sources.values())


def _step_seconds(shape: ModelShape, machine: MachineModel, rows: int) -> float:
    return machine.step_seconds(shape, rows, 0.0)


def _report(counts: LoadCounts, run: int) -> DraftedLoad:
    sources = {
        name: SourceReport(
            one.drafts,
            one.drafted,
            one.accepted,
            one.accepted / one.drafted,
            one.accepted / one.drafts,
        )
        for name, one in sorted(counts.sources.items())
    }
    drafted = sum(one.drafted for one in sources.values())
    accepted = sum(one.accepted for one in sources.values())
    return DraftedLoad(
        rows=counts.rows,
        run=run,
        tokens=counts.tokens,
        tokens_per_step=counts.tokens / max(counts.row_steps, 1),
        acceptance_rate=accepted / max(drafted, 1),
        speed=counts.plain_seconds / counts.seconds if counts.seconds else 1.0,
        drafting_us=median(counts.drafting_seconds or [0.0]) * 1e6,
        preparing_us=median(counts.preparing_seconds or [0.0]) * 1e6,
        sources={str(name): one for name, one in sources.items()},
    )
