"""Has grammars compiled in a process apart first, which may break or be ended.

Knows: that process, and what its end means. Does not know: what it does (`check_process.py`).
"""

from __future__ import annotations

import signal
import subprocess
import sys
from types import TracebackType

import msgspec

from engine.errors import InvalidGrammar
from engine.grammars.check_process import Checked
from engine.grammars.limits import CHECK_S, PATIENCE_S
from engine.link.messages import Grammar
from storage.waiting import wait_for_any


class GrammarChecker:
    """One process, started when first needed. One owner thread, but for `interrupt`."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._patience_s = patience_s
        self._decoder = msgspec.json.Decoder(Checked)

    def __enter__(self) -> GrammarChecker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def check(self, grammar: Grammar) -> str:
        """What the library is to compile; raises InvalidGrammar."""
        line = self._ask(msgspec.json.encode(grammar) + b"\n")
        if not line:
            raise InvalidGrammar(f"the {_NAMES[grammar.kind]} {self._why_it_ended()}")
        answer = self._decoder.decode(line)
        if answer.error:
            raise InvalidGrammar(f"the {_NAMES[grammar.kind]} cannot be used: {answer.error}")
        return answer.text

    def interrupt(self) -> None:
        """End the check under way, from any thread."""
        process = self._process
        if process is not None:
            process.kill()

    def _ask(self, line: bytes) -> bytes:
        """The answer's whole line; empty when the process came to its end, or took too long."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            return b""
        is_there = wait_for_any([process.stdout], self._patience_s)
        answer = process.stdout.readline() if is_there else b""
        return answer if answer.endswith(b"\n") else b""

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "engine.grammars.check_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # a panic would quote the grammar
            )
        return self._process

    def _why_it_ended(self) -> str:
        code = self._end()
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return f"takes more than {CHECK_S} s to compile"
        return "is nested too deeply, or needs too much memory to compile"

    def _end(self) -> int:
        """End the process; how it ended."""
        process, self._process = self._process, None
        if process is None:
            return 0
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:  # what it was sent last is still in the pipe's buffer
                continue
        try:
            return process.wait(0.2)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


_NAMES = {
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "lark": "grammar",
    "gbnf": "GBNF grammar",
}
