"""The compilation of grammars in a few threads. Each flow has at most one thread at a time.

Flows take turns, so a flow with many or slow grammars delays only itself. The engine's own thread
continues while grammars are compiled.

Elsewhere: which grammars are kept (`cache.py`).
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass

from engine.errors import EngineError, EngineFailure, QueueFull
from engine.grammars.checker import CheckProcess, GrammarChecker
from engine.grammars.compilation import Compilation, compiled
from engine.grammars.limits import CLOSE_S, COMPILE_STACK_BYTES, PATIENCE_S
from engine.grammars.vocabulary import Vocabulary
from engine.link.messages import Grammar

NUM_THREADS = 2
MAX_WAITING = 64  # maximum number of waiting grammars of one flow
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Job:
    flow: str
    grammar: Grammar
    compilation: Compilation


class GrammarCompiler:
    """The compiling threads, which start with the first grammar and end with `close`."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        num_threads: int = NUM_THREADS,
        max_waiting: int = MAX_WAITING,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._vocabulary = vocabulary
        self._max_waiting = max_waiting
        self._threads: list[threading.Thread] = []
        self._process = CheckProcess(vocabulary)
        self._checkers = [GrammarChecker(self._process, patience_s) for _ in range(num_threads)]
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()
        self._busy: set[str] = set()
        self._is_closed = False

    def compile(self, flow: str, grammar: Grammar) -> Compilation:
        """Queue a grammar. Return its compilation, which a thread fills in. Raises QueueFull."""
        if not self._threads:
            self._start()
        with self._changed:
            waiting = self._waiting.setdefault(flow, deque())
            if len(waiting) >= self._max_waiting:
                raise QueueFull("too many grammars wait to be compiled", retry_after_s=1.0)
            job = _Job(flow, grammar, Compilation())
            waiting.append(job)
            self._changed.notify()
        return job.compilation

    def start_process(self) -> None:
        """Start the checking process, so that it reads the vocabulary before the first grammar."""
        self._process.start()

    def close(self) -> None:
        """End the threads and the checking process. Waiting grammars are not compiled.

        A running compilation cannot be interrupted. The call waits for it, but at most CLOSE_S
        seconds.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for checker in self._checkers:
            checker.interrupt()
        self._process.close()
        for thread in self._threads:
            thread.join(CLOSE_S)

    def _start(self) -> None:
        before = threading.stack_size(COMPILE_STACK_BYTES)
        self._threads = [
            threading.Thread(target=self._work, args=(checker,), name="grammars", daemon=True)
            for checker in self._checkers
        ]
        for thread in self._threads:
            thread.start()
        threading.stack_size(before)

    def _work(self, checker: GrammarChecker) -> None:
        with checker:
            while (job := self._take()) is not None:
                self._compile(job, checker)
                del job  # otherwise the idle thread would keep the grammar's text in memory

    def _compile(self, job: _Job, checker: GrammarChecker) -> None:
        try:
            checked = checker.check(job.grammar)
            job.compilation.compiled_bytes = checked.num_bytes
            job.compilation.grammar = compiled(checked.text, self._vocabulary)
        except EngineError as error:
            job.compilation.fail(error)
        except Exception as error:  # noqa: BLE001  without an end whoever asked would wait for ever
            # The error's text may quote the grammar.
            _log.error("a grammar is not compiled: %s", type(error).__name__)
            job.compilation.fail(EngineFailure(f"a grammar could not be compiled: {error}"))
        finally:
            self._done(job)

    def _take(self) -> _Job | None:
        with self._changed:
            while not self._is_closed:
                flow = next((flow for flow in self._waiting if flow not in self._busy), None)
                if flow is not None:
                    return self._taken(flow)
                self._changed.wait()
        return None

    def _taken(self, flow: str) -> _Job:
        job = self._waiting[flow].popleft()
        if self._waiting[flow]:
            self._waiting.move_to_end(flow)
        else:
            del self._waiting[flow]
        self._busy.add(flow)
        return job

    def _done(self, job: _Job) -> None:
        with self._changed:
            self._busy.remove(job.flow)
            self._changed.notify()
