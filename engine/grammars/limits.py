"""Bounds of one grammar: the size of its text, the cost of its compilation and its masks.

The library's own limits end most of what is too large, but not all: some schemas keep it busy for
hours, some take gigabytes, and some make it overflow its stack. So grammars are compiled in a
process apart first (`checker.py`).
"""

from __future__ import annotations

from llguidance import LLParserLimits

MAX_CHARS = 1 << 17  # characters of a grammar's text
CHECK_S = 1  # processor seconds to compile it; one second more is tolerated
PATIENCE_S = 20.0  # seconds until its check has ended, on a busy machine
START_S = 120.0  # seconds until the process has read the vocabulary, on a busy machine
CLOSE_S = 5.0  # longest wait for a compiling thread, in seconds
CHECK_BYTES = 512 << 20  # address space of the checking process, beside its vocabulary
# Less than the stack of the engine's threads: a grammar that passes here fits the engine.
CHECK_STACK_BYTES = 1 << 20
COMPILE_STACK_BYTES = 16 << 20
# Bytes of compiled grammars. A grammar grows with new states of its masks: by at most 64 MiB for
# each second of masks, for the kinds in `benchmarks.engine.grammar_check`.
LEAST_BYTES = 100_000  # least charge for a grammar, which has at least some 80 kB
REFUSED_BYTES = 8192  # least charge for a refused grammar: a digest and up to 4,000 bytes of error
MAX_BYTES = 64 << 20  # size beyond which a grammar is compiled again
FLOW_BYTES = 256 << 20
ALL_BYTES = 1 << 30
GROWTH_BYTES_PER_S = 100e6
MASK_S = 0.1  # processor seconds for one mask; usual are 20 to 100 us
# Processor seconds after which no further mask after a draft is begun. A row's masks then take
# little longer than its first, as without drafts.
AHEAD_S = 0.001
# Seconds that Python's lock is held. A call to follow a token takes some 5 us, one of hard grammars
# up to 0.1 ms.
STEP_S = 0.002  # time of all calls in a step
LEAST_SHARE_S = 0.0001  # time of a flow's calls, however many flows there are
LONGEST_S = 0.005  # time of one call; a request with MOST_LONG longer ones in a row ends
MOST_LONG = 3
LATE_REST = 3  # times as long as a late token took do others wait: a quarter of the time is theirs
MOST_FORCED = 256  # forced tokens that are kept of one call, which may find tens of thousands


def parser_limits() -> LLParserLimits:
    """Return the library's limits for a grammar and for each token."""
    return LLParserLimits(
        step_lexer_fuel=50_000,
        step_max_items=60_000,
        max_lexer_states=20_000,
        max_grammar_size=100_000,
        verbose_errors=False,  # errors would quote the grammar
    )
