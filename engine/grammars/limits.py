"""Bounds of one grammar: what its text, its compilation and its masks may take.

The library's own limits end most of what is too large, but not all: some schemas keep it busy for
hours, some take gigabytes, and some make it overflow its stack. So grammars are compiled in a
process apart first (`checker.py`).
"""

from __future__ import annotations

from llguidance import LLParserLimits

MAX_CHARS = 1 << 17  # characters of a grammar's text
CHECK_S = 1  # of the processor, to compile it; up to another second is let pass
PATIENCE_S = 20.0  # until its check has ended, on a machine that has other things to do
START_S = 120.0  # until the process of checks has read the vocabulary, on such a machine
CLOSE_S = 5.0  # longest wait for a thread that compiles
CHECK_BYTES = 512 << 20  # of address space, beside the vocabulary, for what compiles it first
# Less than what the engine's own threads have, so that what fits there fits here.
CHECK_STACK_BYTES = 1 << 20
COMPILE_STACK_BYTES = 16 << 20
# Of the memory of compiled grammars. Masks make one grow by what they newly see: at most 64 MiB for
# each of their seconds, of the kinds that `benchmarks.engine.grammar_check` has.
LEAST_BYTES = 100_000  # least charge for one, which has some 80 kB or more
REFUSED_BYTES = 8192  # of one that is refused: a digest, and what was wrong, of which 4,000 bytes
MAX_BYTES = 64 << 20  # bytes of one beyond which it is compiled anew
FLOW_BYTES = 256 << 20
ALL_BYTES = 1 << 30
GROWTH_BYTES_PER_S = 100e6
MASK_S = 0.1  # of the processor, for one mask; usual are 20 to 100 us


def parser_limits() -> LLParserLimits:
    """Return what the library may spend on a grammar and on each token."""
    return LLParserLimits(
        step_lexer_fuel=50_000,
        step_max_items=60_000,
        max_lexer_states=20_000,
        max_grammar_size=100_000,
        verbose_errors=False,  # they would quote the grammar
    )
