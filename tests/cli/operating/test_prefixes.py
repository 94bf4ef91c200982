"""`ratoon prefixes` publishes, lists and deletes prefixes. Bad files and names are refused.

The gateway is real, with a fake engine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.console import Ratoon

TOOLS = '[{"type": "function", "function": {"name": "clock"}}]'
TEXT = "Be brief and be kind to everyone who asks you something."


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "rules.txt"
    file.write_text(TEXT)
    return file


def test_a_prefix_lives_and_ends(ratoon: Ratoon, text: Path) -> None:
    created = ratoon(f"prefixes create rules --system {text}")
    assert created.out.startswith("Published rules version 1 (px_")
    [listed] = ratoon("prefixes list --json").json
    assert (listed["name"], listed["scope"], listed["blocks"]) == ("rules", "all", 5)
    assert listed["id"] in ratoon("prefixes list").out
    assert ratoon("prefixes show rules --json").json["id"] == listed["id"]
    assert ratoon(f"prefixes show {listed['id']}").out.endswith(f"\nsystem:\n{TEXT}\n")
    again = ratoon(f"prefixes create rules --system {text}")
    assert again.out.startswith("Nothing new, this is published as it is: rules version 1 (px_")
    assert ratoon(f"prefixes create rules --text {text}").out.startswith(
        "Published rules version 2"
    )
    assert ratoon("prefixes show rules").out.endswith(f"\ntext:\n{TEXT}\n")
    assert ratoon("prefixes delete rules").out == "Deleted prefix rules.\n"
    assert ratoon("prefixes list --json").json == []


def test_a_prefix_may_be_a_groups_and_made_of_messages(ratoon: Ratoon, tmp_path: Path) -> None:
    ratoon("groups create readers")
    file = tmp_path / "messages.json"
    file.write_text(f'[{{"role": "system", "content": "{TEXT}"}}]')
    made = ratoon(f"prefixes create theirs --messages {file} --scope readers --json").json
    assert made["scope"].startswith("gr_")
    for command in ("list", "show theirs"):
        shown = ratoon(f"prefixes {command}").out
        assert "readers" in shown
        assert made["scope"] not in shown
    assert ratoon("prefixes show theirs --json").json["scope"] == made["scope"], "ids for programs"
    assert ratoon("prefixes delete theirs").status == 0
    assert ratoon("groups delete readers").status == 0


def test_tools_go_with_messages_or_alone(ratoon: Ratoon, text: Path, tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text(TOOLS)
    alone = ratoon(f"prefixes create pack --tools {file} --json").json
    # BOS and two turn tokens; the next turn has only begun
    assert alone["tokens"] == len(f"tools:{TOOLS}") + 3
    both = ratoon(f"prefixes create pack --tools {file} --system {text} --json").json
    assert both["version"] == alone["version"] + 1
    shown = ratoon("prefixes show pack").out
    assert shown.endswith(f"\nsystem:\n{TEXT}\n")
    assert '\ntool:\n{"type":"function","function":{"name":"clock"}}\n' in shown
    assert both["tokens"] == alone["tokens"] + len(f"system:{TEXT}") + 1
    refused = ratoon(f"prefixes create pack --tools {file} --text {text}")
    assert refused.status == 2
    assert "--tools: goes with" in refused.err
    assert ratoon("prefixes delete pack").status == 0


def test_tools_that_are_none_are_refused_by_the_server(ratoon: Ratoon, tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text('[{"type": "function", "function": {}}]')
    refused = ratoon(f"prefixes create pack --tools {file}")
    assert refused.status == 1
    assert "name" in refused.err
    file.write_text(TOOLS)  # positive control: the right tools
    assert ratoon(f"prefixes create pack --tools {file}").status == 0
    assert ratoon("prefixes delete pack").status == 0


@pytest.mark.parametrize("flags", ["", "--system {0} --text {0}", "--messages {0}", "--tools {0}"])
def test_exactly_one_good_file_is_wanted(ratoon: Ratoon, text: Path, flags: str) -> None:
    refused = ratoon(f"prefixes create rules {flags.format(text)}")
    assert refused.status != 0
    assert "--" in refused.err
    assert ratoon("prefixes list --json").json == []


def test_a_prefix_or_group_that_is_not_there_is_named(ratoon: Ratoon, text: Path) -> None:
    assert "nothing" in ratoon("prefixes show nothing").err
    nobody = ratoon(f"prefixes create rules --text {text} --scope nobody")
    assert "--scope: there is no group 'nobody'" in nobody.err
