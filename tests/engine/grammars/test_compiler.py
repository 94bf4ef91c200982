"""Threads that compile grammars: every compilation ends, even if its check breaks."""

from __future__ import annotations

from contextlib import closing

from engine.errors import EngineFailure, InvalidGrammar
from engine.grammars.check import Checked
from engine.grammars.checker import CheckProcess, GrammarChecker
from engine.grammars.compiler import GrammarCompiler
from engine.grammars.vocabulary import Vocabulary
from engine.link.messages import Grammar
from tests.doubles.waiting import wait_for

LONG_S = 30.0  # seconds, reached only by a test that hangs


class Breaking(GrammarChecker):
    """A checker that raises an error at its first grammar, and refuses all others."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(CheckProcess(vocabulary))
        self._has_broken = False

    def check(self, grammar: Grammar) -> Checked:
        del grammar
        if not self._has_broken:
            self._has_broken = True
            raise RuntimeError("it broke")
        raise InvalidGrammar("it is wrong")


def test_a_check_that_breaks_fails_its_grammar_alone(vocabulary: Vocabulary) -> None:
    with closing(GrammarCompiler(vocabulary, num_threads=1)) as compiler:
        compiler._checkers = [Breaking(vocabulary)]
        first, second = (compiler.compile("flow", Grammar("regex", text)) for text in "ab")
        wait_for(lambda: first.is_done and second.is_done, LONG_S)
    assert isinstance(first.error, EngineFailure)
    assert isinstance(second.error, InvalidGrammar)
