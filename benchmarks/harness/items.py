"""Questions with four choices: the MMLU examples inside the package lm-evaluation-harness.

There are five questions of each of 57 subjects. The questions come with the package, so no data set
is downloaded.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

_PLACE = "tasks/mmlu/flan_cot_fewshot/_cot_prompts.json"
_QUESTION = re.compile(
    r"^Q: (?P<question>.+?)\n\(A\) (?P<a>.+?) \(B\) (?P<b>.+?) \(C\) (?P<c>.+?) \(D\) (?P<d>.+?)\n"
    r"A: .*?The answer is \((?P<label>[A-D])\)",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Item:
    """A question, its choices, and the index of the right choice."""

    question: str
    choices: list[str]
    label: int


def items(limit: int) -> list[Item]:
    """Return the `limit` shortest questions, in a fixed order."""
    by_subject = json.loads((files("lm_eval") / _PLACE).read_text(encoding="utf-8"))
    found = [
        Item(
            question=match["question"].strip(),
            choices=[match[name].strip() for name in "abcd"],
            label="ABCD".index(match["label"]),
        )
        for subject in sorted(by_subject)
        for match in _QUESTION.finditer(by_subject[subject])
    ]
    return sorted(found, key=_length)[:limit]


def documents(limit: int) -> list[dict[str, Any]]:
    """Return the questions as the harness reads them."""
    return [asdict(item) for item in items(limit)]


def _length(item: Item) -> tuple[int, str]:
    return len(item.question) + sum(map(len, item.choices)), item.question
