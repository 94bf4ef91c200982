"""`ratoon verify-isolation` times gaps between tokens: drafts must not reveal others' texts.

The engine is real, but its steps take a fixed time, so a drafted answer is many times faster.
Drafts come from the same tenant's earlier answers or, as a positive control, from all tenants'
answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.drafting.answers import EarlierAnswers
from engine.drafting.draft import Drafting, NoDrafts
from tests.cli.console import Console
from tests.doubles.engine.drafting.late_drafting import LateDrafting
from tests.doubles.engine.drafting.pooled_answers import PooledAnswers
from tests.doubles.engine.engine_thread import EngineThread
from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.doubles.waiting import wait_for
from tests.seams.support.lone_gateway import started

STEP_S = 0.004
SAMPLES = 20
TIMING_ALONE = ("--quick", "--within-s", "3600", "--eviction-trials", "0")
NO_CELLS = "host"  # a tier that the engine lacks, so that no cells are tested


def record_of(directory: Path, drafting: Drafting, tier: str = NO_CELLS) -> dict[str, Any]:
    """Return the command's record for a server with this drafting."""
    model = write_tiny_model(directory / "tiny", config=RUNNABLE)
    data = directory / "data"
    with (
        EngineThread(
            f"{data}.sock",
            pace_s=STEP_S,
            vocab_size=RUNNABLE["vocab_size"],
            block_size=16,
            drafting=drafting,
        ),
        started(data, "--model", str(model)) as gateway,
    ):
        wait_for(lambda: gateway.status() == "ready", 60)
        target = ("--url", gateway.url, "--admin-key", gateway.key("RATOON_ADMIN_KEY"), "--json")
        timing = ("--samples", str(SAMPLES), "--timing-tokens", "64")
        record: dict[str, Any] = (
            Console()
            .type("verify-isolation", *target, *TIMING_ALONE, *timing, "--tiers", tier)
            .json
        )
    return record


@pytest.mark.parametrize(("answers", "outcome"), [(EarlierAnswers, None), (PooledAnswers, "leaks")])
def test_earlier_answers_are_a_tenants_own(
    tmp_path: Path, answers: type[EarlierAnswers], outcome: str | None
) -> None:
    """Draft with a server's own drafters. Positive control: drafts from all namespaces' answers."""
    record = record_of(tmp_path, LateDrafting(answers), NO_CELLS if outcome is None else "device")
    gaps = record["gaps"]
    assert gaps["control"]["auc"] > 0.9, "its own answers are drafted"
    assert gaps["control"]["hit_median_s"] < gaps["control"]["miss_median_s"] / 2
    if outcome is None:
        assert 0.1 < gaps["across"]["auc"] < 0.9, "few samples, so not for chance"
        assert gaps["across"]["hit_median_s"] > gaps["across"]["miss_median_s"] / 2
        assert "gaps" not in {finding["dimension"] for finding in record["findings"]}
    else:
        assert record["gaps_outcome"] == record["verdict"] == outcome
        assert gaps["across"]["auc"] > 0.9
        cells = {finding["outcome"] for finding in record["findings"]}
        assert "passed" in cells
        assert "leaks" not in cells, "no block is shared: only the gaps tell"


def test_without_drafts_there_are_no_gaps_to_tell(tmp_path: Path) -> None:
    record = record_of(tmp_path, NoDrafts())
    assert (record["gaps"], record["gaps_outcome"]) == (None, None)
    [finding] = [one for one in record["findings"] if one["dimension"] == "gaps"]
    assert (finding["outcome"], finding["note"]) == ("not applicable", "the server drafts nothing")
