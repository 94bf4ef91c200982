"""`ratoon simulate --drafts` drafts from prompts and from a tenant's own earlier answers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.cli.console import Console

RANDOM = random.Random(3)
FILE = [RANDOM.randrange(300, 2000) for _ in range(400)]
EDITED = [*FILE[:100], 7, *FILE[101:250], *FILE[260:]]


def write(path: Path, *lines: dict[str, Any]) -> str:
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return str(path)


def reports(console: Console, *words: str) -> list[dict[str, Any]]:
    printed = console.type("simulate", "--json", "--drafts", *words)
    assert printed.status == 0, printed.err
    found: list[dict[str, Any]] = printed.json
    return found


def test_an_edit_is_drafted_from_its_prompt(console: Console, tmp_path: Path) -> None:
    file = write(tmp_path / "edits.jsonl", {"prompt": [5, *FILE, 6], "answer": EDITED})
    for report in reports(console, file):
        assert report["acceptance_rate"] > 0.7
        assert report["tokens_per_step"] > 20
        assert report["tokens"] == len(EDITED) - 1, "the prompt's step gives the first"
        assert set(report["sources"]) == {"own"}
        assert report["speed"] > 2


def test_a_second_run_is_drafted_from_the_first(console: Console, tmp_path: Path) -> None:
    answers = [[RANDOM.randrange(300, 2000) for _ in range(200)] for _ in range(4)]
    lines = [{"prompt": [9, at, 8], "answer": answer} for at, answer in enumerate(answers)]
    file = write(tmp_path / "again.jsonl", *lines)
    found = reports(console, file, "--runs", "2")
    assert [(one["rows"], one["run"]) for one in found] == [
        (rows, run) for rows in (1, 8, 32) for run in (1, 2)
    ]
    for first, second in zip(found[::2], found[1::2], strict=True):
        assert first["tokens_per_step"] < 1.1
        assert second["sources"]["tree"]["acceptance_rate"] == 1.0
        assert second["tokens_per_step"] > 8


def test_another_tenants_answers_are_not_drafted_from(console: Console, tmp_path: Path) -> None:
    answer = [RANDOM.randrange(300, 2000) for _ in range(200)]
    for tenants, is_drafted in ((("a", "b"), False), (("a", "a"), True)):
        lines = [{"prompt": [9, 8], "answer": answer, "tenant": name} for name in tenants]
        found = reports(console, write(tmp_path / "texts.jsonl", *lines))[0]
        assert ("tree" in found["sources"]) == is_drafted


def test_texts_are_tokenised_and_shown_as_a_table(console: Console, tmp_path: Path) -> None:
    text = "The support code for Berlin is 4821. " * 8
    file = write(tmp_path / "texts.jsonl", {"prompt": text, "answer": text})
    printed = console.type("simulate", "--drafts", file)
    assert printed.status == 0
    for word in ("texts.jsonl", "own", "all", "rate", "speed"):
        assert word in printed.out


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 1"),
        ('{"prompt": "a"}', "answer"),
        ('{"prompt": "", "answer": "b"}', "empty"),
        ('{"prompt": [-1], "answer": "b"}', "line 1"),
        ('{"prompt": [2147483648], "answer": "b"}', "line 1"),
        ("", "no texts"),
    ],
)
def test_a_file_that_is_none_is_refused(
    console: Console, tmp_path: Path, line: str, told: str
) -> None:
    (tmp_path / "bad.jsonl").write_text(line, encoding="utf-8")
    printed = console.type("simulate", "--drafts", str(tmp_path / "bad.jsonl"))
    assert printed.status == 2
    assert told in printed.err


def test_settings_that_do_not_fit_are_refused(console: Console, tmp_path: Path) -> None:
    file = write(tmp_path / "texts.jsonl", {"prompt": FILE, "answer": EDITED})
    for words, told in (
        (("--drafts", str(tmp_path / "none.jsonl")), "No such file"),
        (("--drafts", file, "--tokenizer", str(tmp_path)), "tokenizer.json"),
        (("--drafts", file, "--tokenizer", file), "--tokenizer"),
        (("--drafts", file, "--device-tokens", "512"), "--device-tokens"),
        (("--drafts", file, file), "TRACE"),
        ((), "TRACE"),
    ):
        printed = console.type("simulate", *words)
        assert printed.status == 2
        assert told in printed.err
