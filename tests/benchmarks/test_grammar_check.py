"""The benchmark of checking grammars measures each kind of grammar at its smallest size."""

from __future__ import annotations

import json

import pytest

from benchmarks.engine.grammar_check import EMBEDDED, KINDS, main


def test_each_kind_of_grammar_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    main(EMBEDDED, grammars=2, masks=20)
    found = {line["name"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert found.keys() == KINDS.keys()
    assert all(line["with_tokens_ms"] > 0 and line["compiled_mib"] > 0 for line in found.values())
