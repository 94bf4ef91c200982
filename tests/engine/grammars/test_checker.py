"""The process that checks grammars."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import InvalidGrammar
from engine.grammars.checker import GrammarChecker
from engine.link.messages import Grammar


def test_it_runs_the_engine_s_code_whatever_is_in_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    with GrammarChecker() as checker:
        assert "lark_grammar" in checker.check(Grammar("regex", "a+"))


class BrokenOff(GrammarChecker):
    """Its first process ends in the middle of an answer."""

    num_started = 0

    def _started(self) -> subprocess.Popen[bytes]:
        if self.num_started or self._process is not None:
            return super()._started()
        self.num_started += 1
        half = "input(); print('{', end='')"
        self._process = subprocess.Popen(
            [sys.executable, "-c", half], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self._process


def test_half_an_answer_is_the_end_of_the_process_and_another_one_follows() -> None:
    with BrokenOff() as checker:
        with pytest.raises(InvalidGrammar, match="too deeply"):
            checker.check(Grammar("regex", "a+"))
        assert "lark_grammar" in checker.check(Grammar("regex", "a+"))
