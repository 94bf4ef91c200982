"""Texts replayed through the drafters."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks.simulated.drafts import LOADS, main

RANDOM = random.Random(3)
FILE = [RANDOM.randrange(300, 2000) for _ in range(400)]
EDITED = [*FILE[:100], 7, *FILE[101:250], *FILE[260:]]


def write(path: Path, *lines: dict[str, Any]) -> str:
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return str(path)


def reports(
    capsys: pytest.CaptureFixture[str], file: str, *, runs: int = 1
) -> dict[str, dict[str, Any]]:
    """Replay the file; the printed numbers by their names."""
    main(Path(file), runs=runs)
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    return {line["name"]: line for line in lines}


def test_an_edit_is_drafted_from_its_prompt(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = write(tmp_path / "edits.jsonl", {"prompt": [5, *FILE, 6], "answer": EDITED})
    found = reports(capsys, file)
    assert set(found) == {f"{n} at once, run 1{of}" for n in LOADS for of in ("", ": own")}
    for rows in LOADS:
        report = found[f"{rows} at once, run 1"]
        assert report["acceptance_rate"] > 0.9
        assert report["tokens_per_step"] > 6
        assert report["tokens"] == len(EDITED) - 1, "the prompt's step gives the first"
        assert report["speed"] > 2


def test_a_second_run_is_drafted_from_the_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answers = [[RANDOM.randrange(300, 2000) for _ in range(200)] for _ in range(4)]
    lines = [{"prompt": [9, at, 8], "answer": answer} for at, answer in enumerate(answers)]
    found = reports(capsys, write(tmp_path / "again.jsonl", *lines), runs=2)
    for rows in LOADS:
        assert found[f"{rows} at once, run 1"]["tokens_per_step"] < 1.1
        assert found[f"{rows} at once, run 2: tree"]["acceptance_rate"] == 1.0
        assert found[f"{rows} at once, run 2"]["tokens_per_step"] > 8


def test_another_tenants_answers_are_not_drafted_from(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answer = [RANDOM.randrange(300, 2000) for _ in range(200)]
    for tenants, is_drafted in ((("a", "b"), False), (("a", "a"), True)):
        lines = [{"prompt": [9, 8], "answer": answer, "tenant": name} for name in tenants]
        found = reports(capsys, write(tmp_path / "texts.jsonl", *lines))
        assert ("1 at once, run 1: tree" in found) == is_drafted


def test_texts_are_tokenised(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = "The support code for Berlin is 4821. " * 8
    file = write(tmp_path / "texts.jsonl", {"prompt": text, "answer": text})
    assert "1 at once, run 1: own" in reports(capsys, file)


@pytest.mark.parametrize(
    ("line", "told"), [("{", "line 1"), ('{"prompt": "", "answer": "b"}', "empty")]
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, line: str, told: str) -> None:
    (tmp_path / "bad.jsonl").write_text(line, encoding="utf-8")
    with pytest.raises(typer.BadParameter, match=told):
        main(tmp_path / "bad.jsonl")
