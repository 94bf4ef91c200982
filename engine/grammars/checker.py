"""The client of the process that checks grammars. That process may crash or be killed.

Elsewhere: how grammars are checked (`check_process.py`).
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType

import msgspec

from engine.errors import EngineFailure, InvalidGrammar
from engine.grammars.check import Checked
from engine.grammars.check_process import READY
from engine.grammars.limits import CHECK_S, PATIENCE_S, START_S
from engine.grammars.vocabulary import Vocabulary
from engine.link.messages import Grammar
from storage.waiting import wait_for_any


class CheckProcess:
    """The checking process. It starts at the first use, or by `start`. Any thread may use it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_ready = False
        self._is_closed = False

    def start(self) -> None:
        """Start the process if it is not running. It begins by reading the vocabulary."""
        with self._lock:
            self._started()

    def connect(self) -> socket.socket:
        """Connect to a new worker. Raises EngineFailure if the process has ended."""
        with self._lock:
            control = self._started()
            if not self._is_ready:
                self._is_ready = self._has_said(control)
            own, other = socket.socketpair()
            with other:
                try:
                    socket.send_fds(control, [READY], [other.fileno()])
                except OSError as error:
                    own.close()
                    raise EngineFailure("the check of grammars has ended") from error
            return own

    def close(self) -> None:
        """Kill the process. Any thread may call this. Callers that are waiting get an error."""
        self._is_closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()

    def _started(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._is_closed:
            raise EngineFailure("the check of grammars is closed")
        if self._control is None:
            self._control, other = socket.socketpair()
            with other:
                self._process = subprocess.Popen(
                    self._command(),
                    stdin=other.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # a panic message would quote the grammar
                )
            if self._is_closed:
                self._process.kill()
        return self._control

    def _command(self) -> list[str]:
        numbers = (self._vocabulary.num_logits, *self._vocabulary.eos_token_ids)
        arguments = [str(self._vocabulary.model_dir), *map(str, numbers)]
        return [sys.executable, "-P", "-m", "engine.grammars.check_process", *arguments]

    def _has_said(self, control: socket.socket) -> bool:
        """Return True once the process has read the vocabulary. Raises EngineFailure."""
        is_there = wait_for_any([control], START_S)
        if not is_there or control.recv(1) != READY:
            raise EngineFailure("the check of grammars did not start")
        return True

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._control is not None:
            self._control.close()
        self._process, self._control, self._is_ready = None, None, False


class GrammarChecker:
    """A worker of the process, which checks one grammar at a time.

    One thread uses the worker, but any thread may call `interrupt`.
    """

    def __init__(self, process: CheckProcess, patience_s: float = PATIENCE_S) -> None:
        self._process = process
        self._connection: socket.socket | None = None
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
        self._leave()

    def check(self, grammar: Grammar) -> Checked:
        """Check a grammar, and return the text that llguidance must compile.

        Raises InvalidGrammar, and EngineFailure if the check itself fails.
        """
        answer = self._answer(msgspec.json.encode(grammar) + b"\n")
        if answer.error:
            raise InvalidGrammar(f"the {_NAMES[grammar.kind]} cannot be used: {answer.error}")
        return answer

    def interrupt(self) -> None:
        """End the running check. Any thread may call this."""
        connection = self._connection
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, line: bytes) -> Checked:
        if self._connection is None:
            self._connection = self._process.connect()
        try:
            self._connection.sendall(line)
            answer = self._decoder.decode(self._read(self._connection))
        except TimeoutError:
            self._leave()
            return Checked(error=f"it takes more than {CHECK_S} s to compile")
        except (OSError, msgspec.DecodeError) as error:
            self._leave()
            raise EngineFailure("the check of grammars has ended") from error
        if answer.is_last:
            self._leave()
        return answer

    def _read(self, connection: socket.socket) -> bytes:
        """Read one line. Raises TimeoutError, or OSError if the worker is gone."""
        deadline = time.monotonic() + self._patience_s
        said = b""
        while not said.endswith(b"\n"):
            if not wait_for_any([connection], deadline - time.monotonic()):
                raise TimeoutError
            more = connection.recv(1 << 16)
            if not more:
                raise BrokenPipeError
            said += more
        return said

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


_NAMES = {
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "lark": "grammar",
    "gbnf": "GBNF grammar",
    "lark_text": "grammar",
    "lark_string": "grammar",
    "clients_lark": "grammar",
}
