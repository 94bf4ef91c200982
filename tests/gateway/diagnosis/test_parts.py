from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.diagnosis import parts
from gateway.diagnosis.parts import PromptPart, Within
from gateway.processes.fair_executor import at_once

TOOLS = (PromptPart("tools[0]", "tools", "clock"), PromptPart("tools[1]", "tools", "alarm"))
SYSTEM = PromptPart("system", "system", " You never guess. ")
FIRST = PromptPart("messages[0]", "messages", "hi")
SECOND = PromptPart("messages[1]", "messages", "What time is it? " * 9)
PARTS = (*TOOLS, SYSTEM, FIRST, SECOND)
# A template's output: texts are trimmed, a date is added, and tools follow the system text.
PROMPT = (
    'Today: Monday\n<system>You never guess.\n# This is for tools\n[{"name": "clock"},'
    ' {"name": "alarm", "which": 1}]\n<user>hi<user>' + SECOND.text.strip() + "<assistant>"
)


def part_at(given: Sequence[PromptPart], prompt: str, at: int) -> Within:
    within = at_once(parts.part_at(given, prompt, at))
    assert within is not None
    return within


@pytest.mark.parametrize(
    ("text", "name", "side"),
    [
        ("Monday", "system", "before"),
        ("never", "system", "inside"),
        ("\n# This", "system", "after"),
        ("his is", "tools[0]", "before"),
        ('"clock"', "tools[0]", "inside"),
        ("which", "tools[1]", "inside"),
        ("hi<user>", "messages[0]", "inside"),
        ("<user>What", "messages[0]", "after"),
        ("user>What", "messages[1]", "before"),
        ("time", "messages[1]", "inside"),
        ("assistant", None, "before"),
    ],
)
def test_where_a_character_is(text: str, name: str | None, side: str) -> None:
    within = part_at(PARTS, PROMPT, PROMPT.index(text))
    assert (within.part and within.part.name, within.side) == (name, side)


def test_a_text_that_the_template_changes_is_found_by_how_it_begins() -> None:
    changed = PROMPT.replace("it? <assistant>", "it!")
    assert changed.index("time") == PROMPT.index("time")
    within = part_at(
        (*TOOLS, SYSTEM, FIRST, SECOND._replace(text=SECOND.text + "More.")),
        PROMPT,
        PROMPT.index("time"),
    )
    assert within.part is not None
    assert within.part.name == "messages[1]"


def test_what_is_not_there_is_passed_over() -> None:
    lost = PromptPart("messages[2]", "messages", "nothing of this is in it")
    within = part_at((*PARTS, lost), PROMPT, PROMPT.index("time"))
    assert within.part == SECOND


def test_texts_that_are_nearly_there_are_looked_for_once() -> None:
    prompt, near = "-" * 400_000, PromptPart("messages[0]", "messages", "-b" + "-" * 200_000)
    there = PromptPart("messages[5]", "messages", "What time is it?")
    within = part_at((*[near] * 5, there), prompt + there.text, len(prompt) + 5)
    assert (within.part, within.side) == (there, "inside")


LEFT_OUT = 3_000  # number of parts that nearly occur in a prompt of 300 KB
LONG = "a" + " a" * 150_000


@pytest.mark.parametrize("kind", ["tools", "system", "messages"])
def test_parts_that_a_template_leaves_out_are_sought_in_steps_and_not_without_end(
    kind: parts.PartKind,
) -> None:
    lost = PromptPart("lost", kind, "aa")
    within: Within | None = Within(SECOND, "inside")
    steps = 0
    found = parts.part_at([SECOND, *[lost] * LEFT_OUT], LONG + SECOND.text, 9)
    while True:
        try:
            next(found)
            steps += 1
        except StopIteration as end:
            within = end.value
            break
    assert within is None
    read = 1 << 28
    assert read // len(LONG) / 2 < steps < 2 * read // len(LONG), "a step for each reading"


def test_some_parts_that_a_template_leaves_out_hide_no_other() -> None:
    """Find a part although the template leaves out others.

    Positive control: a long conversation has as many parts.
    """
    lost = PromptPart("lost", "messages", "aa")
    at = len(LONG) + 5
    assert part_at([SECOND, *[lost] * 300], LONG + SECOND.text, at) == Within(SECOND, "inside")
