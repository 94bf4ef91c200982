"""The process that checks grammars."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.grammars.checker import GrammarChecker
from engine.link.messages import Grammar


def test_it_runs_the_engine_s_code_whatever_is_in_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    with GrammarChecker() as checker:
        assert "a+" in checker.check(Grammar("regex", "a+"))
