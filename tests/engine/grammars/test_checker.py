"""The process that checks grammars is limited in memory, and replaced after it dies."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from engine.errors import EngineFailure, InvalidGrammar
from engine.grammars.check import checked
from engine.grammars.checker import CheckProcess, GrammarChecker
from engine.grammars.vocabulary import Vocabulary, read_vocabulary
from engine.link.messages import Grammar
from tests.doubles.engine.tiny_model import EOS, write_tiny_model
from tests.doubles.grammars.hard_grammars import deep, endless
from tests.engine.grammars.conftest import VOCAB_SIZE

REGEX = Grammar("regex", "a+")
# The library allocates some megabytes for this schema once it has a vocabulary.
HEAVY = Grammar("json_schema", '{"type": "number", "multipleOf": 9973}')


class InLittleMemory(CheckProcess):
    """A checking process limited to 3 MiB more than its vocabulary and stack."""

    def _command(self) -> list[str]:
        little = "process.CHECK_BYTES, process.CHECK_STACK_BYTES = 4 << 20, 1 << 20"
        run = f"import engine.grammars.check_process as process, sys; {little}; "
        words = super()._command()
        return [sys.executable, "-c", run + "process.main(*sys.argv[1:])", *words[4:]]


@pytest.fixture
def process(vocabulary: Vocabulary) -> Iterator[CheckProcess]:
    with closing(CheckProcess(vocabulary)) as started:
        yield started


def test_it_runs_the_engine_s_code_whatever_is_in_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: CheckProcess
) -> None:
    (tmp_path / "engine.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    with GrammarChecker(process) as checker:
        assert "lark_grammar" in checker.check(REGEX).text


def test_it_knows_the_tokens_of_the_model(process: CheckProcess) -> None:
    with GrammarChecker(process) as checker:
        assert checker.check(Grammar("lark", f"start: <[{VOCAB_SIZE - 1}]>")).text
        with pytest.raises(InvalidGrammar, match="too large: 300"):
            checker.check(Grammar("lark", f"start: <[{VOCAB_SIZE}]>"))


def test_what_takes_memory_with_tokens_alone_is_refused_and_the_next_is_checked(
    vocabulary: Vocabulary, process: CheckProcess
) -> None:
    assert not checked(HEAVY).error, "it cannot be seen without tokens"
    with GrammarChecker(process) as checker:
        assert checker.check(HEAVY).text, "it is no more than may be"
    with closing(InLittleMemory(vocabulary)) as little, GrammarChecker(little) as checker:
        assert checker.check(REGEX).text
        with pytest.raises(InvalidGrammar, match=r"JSON schema .*too much memory"):
            checker.check(HEAVY)
        assert checker.check(REGEX).text


@pytest.mark.parametrize(("grammar", "why"), [(endless(), "1 s"), (deep(), "deep")])
def test_a_worker_that_is_ended_ends_no_other(
    process: CheckProcess, grammar: Grammar, why: str
) -> None:
    with GrammarChecker(process) as checker, GrammarChecker(process) as other:
        assert other.check(REGEX).text
        with pytest.raises(InvalidGrammar, match=why):
            checker.check(grammar)
        assert other.check(REGEX).text
        assert checker.check(REGEX).text


def test_a_process_that_is_gone_blames_no_grammar_and_another_is_started(
    process: CheckProcess,
) -> None:
    with GrammarChecker(process) as checker:
        checker.check(REGEX)
        checker.interrupt()
        assert process._process is not None
        os.kill(process._process.pid, signal.SIGKILL)
        process._process.wait()
        with pytest.raises(EngineFailure):
            checker.check(REGEX)
        assert checker.check(REGEX).text


def test_a_model_that_is_gone_fails_the_check_and_no_more(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(write_tiny_model(tmp_path), VOCAB_SIZE, (EOS,))
    (tmp_path / "tokenizer.json").unlink()
    with closing(CheckProcess(vocabulary)) as process, pytest.raises(EngineFailure):
        process.connect()


def test_it_ends_with_the_engine_s_end_of_its_socket(process: CheckProcess) -> None:
    connection = process.connect()
    assert process._process is not None
    assert process._control is not None
    process._control.close()
    connection.close()
    assert process._process.wait(30.0) == 0
