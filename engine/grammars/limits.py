"""The bounds of one grammar: the size of its text, the cost of its compilation and its masks.

llguidance's own limits miss some grammars that are too large. Some JSON schemas keep llguidance
busy for hours, some take gigabytes, and some overflow its stack. Each grammar is therefore first
compiled in a separate process (`checker.py`).
"""

from __future__ import annotations

from llguidance import LLParserLimits

MAX_CHARS = 1 << 17  # maximum number of characters of a grammar's text
CHECK_S = 1  # processor seconds to compile a grammar; one second more is tolerated
PATIENCE_S = 20.0  # maximum seconds of waiting for a check's end
START_S = 120.0  # maximum seconds until the process has read the vocabulary
CLOSE_S = 5.0  # maximum seconds of waiting for a compiling thread
CHECK_BYTES = 512 << 20  # maximum address space of a checking worker, without its vocabulary

# Less than the stack of the engine's threads, where a checked grammar must fit too.
CHECK_STACK_BYTES = 1 << 20
COMPILE_STACK_BYTES = 16 << 20
# The bytes of compiled grammars. A grammar grows while its masks reach new parser states, by at
# most 64 MiB for each second spent on masks (`benchmarks.engine.grammar_check`).
LEAST_BYTES = 100_000  # minimum charge for a grammar; each takes 80 kB or more
REFUSED_BYTES = 8192  # charge for a refused grammar: a digest and up to 4,000 bytes of error
MAX_BYTES = 64 << 20  # size beyond which a grammar is compiled again
FLOW_BYTES = 256 << 20
ALL_BYTES = 1 << 30
GROWTH_BYTES_PER_S = 100e6
MASK_S = 0.1  # maximum processor seconds for one mask; 20 to 100 us are usual

# The processor seconds after which the masks of further drafts are left out. A row with drafts
# therefore takes little longer than a row without drafts.
AHEAD_S = 0.001
# The seconds that Python's lock is held. Following a token takes some 5 us, or up to 0.1 ms with
# hard grammars.
STEP_S = 0.002  # maximum seconds of all calls in a step
LEAST_SHARE_S = 0.0001  # minimum seconds of a flow's calls in a step
# A text with a maximum length takes some six states for each character that is written. At the
# maximum, a sequence compiles its grammar anew and follows its tokens again.
MAX_STATES = 60_000  # of the lexer; 20 to 30 MiB
LEAST_TOKENS_BETWEEN = 16  # minimum number of tokens between two such compilations,
LEAST_SHARE_BETWEEN = 1 / 16  # and minimum share of the sequence's tokens
FOLLOWED_AT_ONCE = 64  # number of tokens that are followed again without releasing Python's lock
LONGEST_S = 0.005  # seconds of a call; MOST_LONG longer calls in a row end a request
MOST_LONG = 3
# After late tokens were followed, no late token is followed for 3 times the seconds that this took.
# Late tokens therefore get a quarter of the time.
LATE_REST = 3
MOST_FORCED = 256  # maximum number of forced tokens kept from one call, which may find 10,000s


def parser_limits() -> LLParserLimits:
    """Return llguidance's limits for a grammar and for each token."""
    return LLParserLimits(
        step_lexer_fuel=400_000,
        step_max_items=60_000,
        max_lexer_states=MAX_STATES,
        max_grammar_size=100_000,
        verbose_errors=False,  # errors would quote the grammar
    )
