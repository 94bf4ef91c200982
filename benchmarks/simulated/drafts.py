"""Share of texts that the drafters foresee, by source and load; nothing is computed.

    python -m benchmarks.simulated.drafts FILE [--tokenizer DIRECTORY] [--runs 2]

A line of FILE is {"prompt": text or token ids, "answer": the same}, optionally with "tenant";
`benchmarks.engine.draft_texts` writes such files. Each load (texts at once) begins with an empty
cache, and replays all texts --runs times. Prints a JSON line for each load and run, and one for
each source: `speed` is tokens a second over those without drafts, as predicted for an 8B on an
H200 (reads of KV left out); `drafting_us` is processor time a step.
"""

from __future__ import annotations

from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.record import emit
from benchmarks.simulated.draft_replay import DraftReplay, LoadCounts
from benchmarks.simulated.drafted_texts import read_texts
from cli.plan.machine import MachineModel, ModelShape

LOADS = (1, 8, 32)  # texts at once


def main(
    file: Annotated[Path, typer.Argument(help="Texts, one JSON object a line.")],
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json, or its directory.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Replays of all texts in one cache.")] = 1,
    device_tokens: Annotated[int, typer.Option(help="Tokens of the cache.")] = 500_000,
) -> None:
    """Replay the texts with each load."""
    texts = read_texts(file, tokenizer or Path(str(files("handbook") / "model")))
    for rows in LOADS:
        replay = DraftReplay(device_tokens, partial(_step_seconds, MachineModel(), ModelShape()))
        for run in range(1, runs + 1):
            counts = replay.run(texts, rows)
            if counts is None:
                raise typer.BadParameter(f"--device-tokens: {rows} texts at once do not fit")
            report(counts, run)


def report(counts: LoadCounts, run: int) -> None:
    """Print the numbers of a load, then of each source; its rate is accepted / drafted tokens."""
    sources = counts.sources.values()
    emit(
        f"{counts.rows} at once, run {run}",
        tokens=counts.tokens,
        tokens_per_step=counts.tokens / max(counts.row_steps, 1),
        acceptance_rate=sum(one.accepted for one in sources)
        / max(sum(one.drafted for one in sources), 1),
        speed=counts.plain_seconds / counts.seconds if counts.seconds else 1.0,
        drafting_us=counts.processor_seconds / max(counts.steps, 1) * 1e6,
    )
    for name, one in sorted(counts.sources.items()):
        emit(
            f"{counts.rows} at once, run {run}: {name}",
            drafts=one.drafts,
            drafted=one.drafted,
            accepted=one.accepted,
            acceptance_rate=one.accepted / one.drafted,
            accepted_length=one.accepted / one.drafts,
        )


def _step_seconds(machine: MachineModel, shape: ModelShape, rows: int) -> float:
    return machine.step_seconds(shape, rows, 0.0)


if __name__ == "__main__":
    typer.run(main)
