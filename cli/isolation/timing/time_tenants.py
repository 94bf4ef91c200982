"""The timing test: do an attacker's times reveal a victim's prompt or answer?

    a trial      hit:   the victim asks p, the attacker asks p
                 miss:  the victim asks q, the attacker asks r

Two parts of the attacker's answer are timed. These are the first token, which cached blocks make
faster, and the tokens after it, which drafts from earlier answers make faster. In a hit both
tenants get the same answer, because the seed is the same.

In the test of prompt modules, victim and attacker have each stored a schema of the same modules.
Then p, q and r are prompts of one module each.

Every prompt is new. A trial's hit and miss follow each other directly, in random order. So other
load affects both, and both follow the same work for the victim. The control is the same test with
one tenant as victim and attacker.
"""

from __future__ import annotations

import math
from operator import attrgetter

import msgspec

from cli.isolation.fixtures import TenantFixture
from cli.isolation.server import ServerUnderTest
from cli.isolation.timing.timed_requests import TimedConnection
from cli.isolation.timing.trial_prompts import PlainPrompts, PromptsOfModules, TrialPrompts
from cli.isolation.timing.trials import TimingFinding, taken
from cli.progress import progress_lines


class TimingFindings(msgspec.Struct, frozen=True, kw_only=True):
    """The results for the first token, the gaps after it, and first tokens after prompt modules."""

    first_token: TimingFinding
    # None if the server drafts nothing, even from a tenant's own answers
    gaps: TimingFinding | None
    modules: TimingFinding | None = None  # None: no prompt module was timed


async def time_tenants(
    server: ServerUnderTest,
    victim: TenantFixture,
    attacker: TenantFixture,
    length: int,
    samples: int,
    until: float = math.inf,
    *,
    of_modules: bool = False,
) -> TimingFindings | None:
    """Time `samples` hits and misses, or as many as end before `until`.

    Returns None if these are too few to judge. `until` is a time of `time.monotonic()`. The control
    has a fifth as many samples, but at least 100. The load of other clients should be steady.
    Blocks the event loop, except for a moment between trials. With `of_modules` each prompt is a
    prompt module, and no gaps are timed.
    """
    block = server.facts.block_size
    length -= length % block if length > block else 0
    # enough answer tokens that a whole KV block of the answer is cached, for drafts
    answered = 1 if of_modules else block + 1
    prompts: TrialPrompts = PlainPrompts(server, length)
    if of_modules:
        prompts = PromptsOfModules(server, victim.key, attacker.key, length)
    name = "timing of modules" if of_modules else "timing"
    with (
        TimedConnection(server, victim.key) as own,
        TimedConnection(server, attacker.key) as others,
        progress_lines(name, samples) as advance,
    ):
        trials = await taken(prompts, own, others, answered, samples, until, advance)
    if trials is None:
        return None
    gaps = attrgetter("others_s")
    return TimingFindings(
        first_token=trials.finding(length, attrgetter("first_token_s")),
        gaps=trials.finding(length, gaps) if trials.answered > 1 else None,
    )
