"""The limits on one grammar: the size of its text, and the cost of its compilation and masks.

llguidance's own limits miss some grammars that are too large. Some JSON schemas keep llguidance
busy for hours, some take gigabytes, and some overflow its stack. Each grammar is therefore first
compiled in a separate process (`checker.py`).
"""

from __future__ import annotations

from llguidance import LLParserLimits

MAX_CHARS = 1 << 17  # maximum number of characters of a grammar's text
# Maximum processor seconds to check a grammar; the kernel may allow up to one second more.
CHECK_S = 1
PATIENCE_S = 20.0  # maximum seconds to wait for the end of a check
START_S = 120.0  # maximum seconds until the process has read the vocabulary
CLOSE_S = 5.0  # at close, maximum seconds to wait for a compiling thread
CHECK_BYTES = 512 << 20  # maximum address space of a checking worker, not counting its vocabulary

# The stack in the check is smaller than in the engine's threads, so a grammar that passes the check
# fits there too.
CHECK_STACK_BYTES = 1 << 20
COMPILE_STACK_BYTES = 16 << 20
# The memory of compiled grammars in bytes. A grammar grows while its masks reach new parser states,
# by at most 64 MiB for each second spent on masks.
LEAST_BYTES = 100_000  # minimum size counted for a grammar; each takes 80 kB or more
REFUSED_BYTES = 8192  # size counted for a refused grammar: a digest and up to 4,000 bytes of error
MAX_BYTES = 64 << 20  # a larger grammar is refused; one that grows larger is compiled again
FLOW_BYTES = 256 << 20
ALL_BYTES = 1 << 30
GROWTH_BYTES_PER_S = 100e6
MASK_S = 0.1  # maximum processor seconds for one mask; usually 20 to 100 us

# The maximum processor seconds on a row's masks. After that time the row's other drafts get no
# masks. A row with drafts therefore takes little longer than a row without drafts.
AHEAD_S = 0.001
# The seconds for which calls of llguidance hold Python's lock. Following a token takes about 5 us,
# and up to 0.1 ms with hard grammars.
STEP_S = 0.002  # maximum seconds of all calls in a step
LEAST_SHARE_S = 0.0001  # minimum seconds of a flow's calls in a step
# The maximum number of lexer states, which take 20 to 30 MiB. A string with a maximum length takes
# about six states per generated character. At the maximum, the sequence's grammar is compiled
# again, and its tokens are followed again.
MAX_STATES = 60_000
LEAST_TOKENS_BETWEEN = 16  # minimum number of tokens from one such compilation to the next,
LEAST_SHARE_BETWEEN = 1 / 16  # and its minimum as a share of the sequence's tokens
FOLLOWED_AT_ONCE = 64  # tokens that are followed again in one call, which holds Python's lock
LONGEST_S = 0.005  # maximum seconds of a call; MOST_LONG longer calls in a row end the request
MOST_LONG = 3
# After late tokens were followed for some time, none is followed for 3 times as long. Following
# late tokens therefore takes at most a quarter of the time.
LATE_REST = 3
MOST_FORCED = 256  # maximum forced tokens used from one call, which may return tens of thousands


def parser_limits() -> LLParserLimits:
    """Return llguidance's limits for a grammar and for each token."""
    return LLParserLimits(
        step_lexer_fuel=400_000,
        step_max_items=60_000,
        max_lexer_states=MAX_STATES,
        max_grammar_size=100_000,
        verbose_errors=False,  # verbose errors would quote the grammar
    )
