"""The steps from a request's grammar to the constraint on its sequence.

    limits -> [cache of the flow] -> check, in another process -> compile, in a thread -> constraint

A sequence waits in the queue until its constraint is ready.
"""

from __future__ import annotations

import logging
from pathlib import Path

from engine.errors import EngineFailure, InvalidGrammar
from engine.grammars.cache import GrammarCache
from engine.grammars.compiler import GrammarCompiler
from engine.grammars.limits import MAX_CHARS
from engine.grammars.mask_threads import MaskThreads
from engine.grammars.step_time import StepTime
from engine.grammars.token_mask import GrammarConstraint
from engine.grammars.vocabulary import NoVocabulary, read_vocabulary
from engine.link.messages import SamplingParams

# In tokens; a larger vocabulary takes seconds to read, so it is read at the start.
SMALL_VOCABULARY = 1 << 14
_log = logging.getLogger(__name__)


class Grammars:
    """The grammars of one engine. Used by one thread only."""

    def __init__(
        self,
        compiler: GrammarCompiler | None,
        cache: GrammarCache | None = None,
        step_time: StepTime | None = None,
    ) -> None:
        """Compile grammars with `compiler`. Without a compiler, refuse every grammar."""
        self._compiler = compiler
        self._cache = cache or GrammarCache()
        self._time = step_time or StepTime()
        self.masks = MaskThreads(next_step=self._time.next_step)

    def constraint_of(self, sampling: SamplingParams, flow: str) -> GrammarConstraint | None:
        """Return the constraint of a flow's request. Its grammar may not be compiled yet.

        Raises InvalidGrammar. Raises QueueFull if too many of the flow's grammars wait, or if its
        grammars in use take too much memory.
        """
        grammar = sampling.grammar
        if grammar is None:
            return None
        compiler = self._compiler
        if compiler is None:
            raise InvalidGrammar("this model's tokenizer does not serve grammars")
        if len(grammar.text) > MAX_CHARS:
            raise InvalidGrammar(
                f"a grammar of {len(grammar.text)} characters; {MAX_CHARS} are allowed"
            )
        self._cache.make_room(flow)
        compilation = self._cache.find(flow, grammar)
        if compilation is None or isinstance(compilation.error, EngineFailure):
            compilation = compiler.compile(flow, grammar)
            self._cache.keep(flow, grammar, compilation)
        if compilation.error is not None:
            raise compilation.error
        return GrammarConstraint(compilation, flow, step_time=self._time)

    def forget(self, flow: str | None) -> None:
        """Drop the grammars of a flow, or of all flows. Grammars in use stay until their end."""
        self._cache.forget(flow)

    def close(self) -> None:
        """End the threads that make masks, and the threads and process that compile."""
        self.masks.close()
        if self._compiler is not None:
            self._compiler.close()


def open_grammars(model_dir: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> Grammars:
    """Prepare to compile grammars over the vocabulary of the model in `model_dir`."""
    try:
        vocabulary = read_vocabulary(model_dir, vocab_size, eos_token_ids)
    except NoVocabulary as error:
        _log.warning("requests with a grammar are refused: %s", error)
        return Grammars(None)
    compiler = GrammarCompiler(vocabulary)
    if vocab_size > SMALL_VOCABULARY:
        compiler.start_process()
    return Grammars(compiler)
