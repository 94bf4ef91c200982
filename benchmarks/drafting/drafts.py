"""Tokens a second of decodes whose drafts are accepted with a given probability.

    python -m benchmarks.drafting.drafts --model llama-3.1-8b [--rows 1,8,32] [--drafts 5]
        [--acceptance 0.8] [--prompt 1024] [--output 256] [--quick]

A whole engine runs in this process, without HTTP, with random weights. A model with random weights
would accept no draft. So acceptance is simulated, as in other engines' benchmarks. Drafted tokens
are random, and are verified like any other drafts. Then each token is accepted with the given
probability, up to the first rejected token. A line has tokens a second and mean step times, with
and without drafts, and the mean number of accepted tokens per draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Annotated

import numpy as np
import typer

from benchmarks.engine.in_process import LocalEngine, Size
from benchmarks.record import emit
from engine.drafting.acceptance import MOST_DRAFTS
from engine.link.stats.engine_stats import DraftStats
from engine.sequences.sequence import Sequence as EngineSequence
from engine.step import VERIFY, Forward, Launched, Row, Runner, Sampled, Step
from tests.doubles.engine.drafting.scripted_drafting import ScriptedDrafting


@dataclass
class AgreeingRunner:
    """A `Runner` that accepts each drafted token with a given probability."""

    runner: Runner
    acceptance: float
    vocab_size: int
    random: Random = field(default_factory=lambda: Random(7))

    def launch(self, step: Step) -> Launched:
        """Launch a step. Its drafts are judged when the step is collected."""
        return AgreeingStep(self, step.rows, self.runner.launch(step))

    def launch_forward(self, step: Step) -> Forward:
        """Raise an error, because no request of this benchmark has a constraint."""
        raise NotImplementedError

    def judged(self, row: Row, values: Sequence[Sampled]) -> list[Sampled]:
        """Replace a VERIFY row's samples by its drafts, up to the first rejected draft token."""
        drafts = np.frombuffer(row.token_ids, np.int32)[1:].tolist()
        judged = []
        for draft, value in zip(drafts, values, strict=False):
            accepted = self.random.random() < self.acceptance
            other = (draft + 1) % self.vocab_size
            judged.append(value._replace(token_id=draft if accepted else other))
        return [*judged, values[-1]]


@dataclass(frozen=True)
class AgreeingStep:
    """A launched step with drafts to judge. Implements `Launched`."""

    runner: AgreeingRunner
    rows: Sequence[Row]
    launched: Launched

    def collect(self) -> list[Sampled]:
        """Wait for the step and judge its drafts."""
        values, sampled = iter(self.launched.collect()), list[Sampled]()
        for row in self.rows:
            own = [next(values) for _ in range(row.num_samples)]
            sampled += self.runner.judged(row, own) if row.kind is VERIFY else own
        return sampled


@dataclass(frozen=True, slots=True)
class Asked:
    """The sizes, drafts and acceptance of a measurement."""

    rows: int
    prompt: int
    output: int
    drafts: int
    acceptance: float


def main(
    model: str = "handbook",
    rows: str = "1,8,32",
    drafts: Annotated[int, typer.Option(min=1, max=MOST_DRAFTS)] = 5,
    acceptance: Annotated[float, typer.Option(min=0.0, max=1.0)] = 0.8,
    prompt: int = 1_024,
    output: int = 256,
    quick: bool = False,
) -> None:
    """Print a JSON line for each number of rows."""
    counts = [2] if quick else [int(count) for count in rows.split(",")]
    engine = LocalEngine.open(model, 8 if quick else 256, quick=quick)
    for count in counts:
        asked = Asked(count, *((24, 16) if quick else (prompt, output)), drafts, acceptance)
        plain, step_s, _ = measured(engine, asked, drafts=False)
        faster, verify_s, accepted = measured(engine, asked, drafts=True)
        emit(
            "drafts",
            rows=count,
            drafts=drafts,
            acceptance=acceptance,
            plain_tokens_per_s=plain,
            tokens_per_s=faster,
            ratio=faster / plain,
            plain_step_ms=1e3 * step_s,
            step_ms=1e3 * verify_s,
            accepted_per_draft=accepted,
        )


def measured(engine: LocalEngine, asked: Asked, *, drafts: bool) -> tuple[float, float, float]:
    """Decode answers; return tokens per second, step seconds and accepted tokens per draft.

    The clock starts once every prompt is computed.
    """
    vocab_size = engine.opened.model.vocab_size
    drafting = ScriptedDrafting(_random_draft, vocab_size, often=float(drafts))
    drafting.fewest = drafting.most = asked.drafts
    engine = engine.with_drafting(
        drafting, lambda runner: AgreeingRunner(runner, asked.acceptance, vocab_size)
    )
    core, size = engine.core, Size(asked.rows, asked.prompt, asked.output)
    engine.ask(np.random.default_rng(asked.rows + drafts), size, use_cache=False)
    core.step()
    while core.stats().waiting or core.stats().generated_tokens < 2 * asked.rows:
        core.step()
    before = core.stats()
    seconds = engine.run()
    after = core.stats()
    steps = after.steps - before.steps
    generated = after.generated_tokens - before.generated_tokens
    counted = after.drafts.get("own", DraftStats())
    mean = counted.accepted_tokens / max(counted.drafts, 1)
    return generated / seconds, seconds / steps, mean


def _random_draft(sequence: EngineSequence, most: int) -> list[int]:
    del sequence
    return list(range(100, 100 + most))


if __name__ == "__main__":
    typer.run(main)
