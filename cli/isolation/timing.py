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

Tokens are timed at the socket, on one connection of each tenant that stays open. The calls block,
because an event loop between the socket and the clock would add noise.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from operator import attrgetter
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec
import numpy as np
import numpy.typing as npt

from cli.errors import ServerRefused, ServerUnreachable
from cli.isolation.cases import IDS_STREAMED
from cli.isolation.fixtures import TenantFixture
from cli.isolation.server import ProbePrompt, ServerUnderTest, reading_of
from cli.isolation.trial_prompts import PlainPrompts, PromptsOfModules, TrialPrompts
from cli.progress import progress_lines

_WARM_UP = 5
_FEWEST = 20
_CONTROL_SHARE, _MIN_CONTROL = 5, 100
_TIMEOUT_S = 120.0
_RESAMPLES = 2000
_SEEDS = 1 << 31

Times = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.intp]


class Separation(msgspec.Struct, frozen=True, kw_only=True):
    """The separation of hits and misses.

    `auc` is the probability that a hit is faster than a miss, 0.5 if hits and misses are equally
    fast. `low` and `high` are its 95 % interval. `best_advantage` is the maximum, over all
    thresholds, of the true positive rate minus the false positive rate. By chance it is above 0
    even if hits and misses are equally fast.
    """

    samples: int
    auc: float
    low: float
    high: float
    best_advantage: float
    auc_of_tens: float | None  # AUC if each guess uses the mean of ten measured times
    hit_median_s: float
    miss_median_s: float


class TimingFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the timing test for one timed part of an answer."""

    prompt_tokens: int
    across: Separation  # result of trials in which attacker and victim are two tenants
    control: Separation  # result of trials in which attacker and victim are one tenant


class TimingFindings(msgspec.Struct, frozen=True, kw_only=True):
    """The results for the first token, the gaps after it, and first tokens after prompt modules."""

    first_token: TimingFinding
    # None if the server drafts nothing, even from a tenant's own answers
    gaps: TimingFinding | None
    modules: TimingFinding | None = None  # None: no prompt module was timed


class Timed(NamedTuple):
    """The times of an answer in seconds, and the number of its drafted tokens."""

    first_token_s: float
    others_s: float  # seconds from the first token to the end
    drafted: int


class TimedRequests(Protocol):
    """One tenant's requests that are timed."""

    def timed(self, prompt: ProbePrompt, tokens: int, fields: Mapping[str, object]) -> Timed:
        """Time an answer of `tokens` tokens."""
        ...


class _TimedConnection:
    """A tenant's timed connection, used inside `with`, and unusable after an error.

    Implements `TimedRequests`.
    """

    def __init__(self, server: ServerUnderTest, key: str) -> None:
        self._server = server
        parts = urlsplit(server.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._connection = kind(parts.netloc, timeout=_TIMEOUT_S)
        self._path = parts.path + IDS_STREAMED.path
        self._headers = {**server.headers(key), "Content-Type": "application/json"}

    def __enter__(self) -> _TimedConnection:
        self._connection.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def timed(self, prompt: ProbePrompt, tokens: int, fields: Mapping[str, object]) -> Timed:
        """Time a streamed answer of `tokens` tokens: its first event line, and its end.

        The seed is a function of the prompt, so equal prompts get equal answers. Sampling is not
        greedy, because greedy answers repeat themselves. Repeated tokens would be drafted even
        without another tenant's answer.
        """
        body = self._server.body(IDS_STREAMED, prompt, fields)
        body |= {"max_tokens": tokens, "temperature": 1.0, "ignore_eos": True}
        body["seed"] = hash(tuple(prompt.ids)) % _SEEDS
        content = msgspec.json.encode(body)
        try:
            started = time.perf_counter_ns()
            self._connection.request("POST", self._path, content, self._headers)
            answer = self._connection.getresponse()
            answer.readline()
            first = time.perf_counter_ns()
            rest = answer.read()
            ended = time.perf_counter_ns()
        except (HTTPException, OSError) as error:
            raise ServerUnreachable(f"the connection broke ({error or 'timed out'})") from error
        if answer.status != 200:
            raise ServerRefused(f"the server answered {answer.status}", status=answer.status)
        drafted = reading_of(rest).accepted_drafts if tokens > 1 else 0
        return Timed((first - started) / 1e9, (ended - first) / 1e9, drafted)


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
        _TimedConnection(server, victim.key) as own,
        _TimedConnection(server, attacker.key) as others,
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


class Trials(NamedTuple):
    """Trials, each a hit and a miss, and the number of tokens of each answer."""

    across: list[tuple[Timed, Timed]]  # trials in which victim and attacker are two tenants
    control: list[tuple[Timed, Timed]]
    answered: int

    def finding(self, length: int, part: Callable[[Timed], float]) -> TimingFinding:
        """Compare hits and misses by one timed part of their answers."""
        return TimingFinding(
            prompt_tokens=length,
            across=_separation(self.across, part),
            control=_separation(self.control, part),
        )


async def taken(
    prompts: TrialPrompts,
    own: TimedRequests,
    others: TimedRequests,
    answered: int,
    samples: int,
    until: float,
    advance: Callable[[int], None],
) -> Trials | None:
    """Take `samples` trials, or as many as end before `until`.

    Returns None if these are too few to judge. Answers have `answered` tokens, but a single token
    if the server drafts nothing.
    """
    every = max(1, samples // max(samples // _CONTROL_SHARE, min(_MIN_CONTROL, samples)))
    across, control = list[tuple[Timed, Timed]](), list[tuple[Timed, Timed]]()

    async def trial(spy: TimedRequests) -> tuple[Timed, Timed]:
        await prompts.prepare()
        times = {}
        for is_hit in random.sample((True, False), k=2):
            asked = prompts.new()
            own.timed(asked.prompt, answered, asked.own_fields)
            again = asked if is_hit else prompts.new()
            fields = again.own_fields if spy is own else again.other_fields
            times[is_hit] = spy.timed(again.prompt, answered, fields)
        return times[True], times[False]

    for _ in range(_WARM_UP):
        if time.monotonic() >= until:
            return None
        await trial(others)
        control.append(await trial(own))
    if not any(hit.drafted for hit, _ in control):
        answered = 1
    control.clear()
    for number in range(samples):
        if time.monotonic() >= until:
            break
        across.append(await trial(others))
        if number % every == 0:
            control.append(await trial(own))
        advance(1)
        await asyncio.sleep(0)  # Ctrl-C can cancel the test here
    return None if len(across) < min(_FEWEST, samples) else Trials(across, control, answered)


def _separation(trials: list[tuple[Timed, Timed]], part: Callable[[Timed], float]) -> Separation:
    hits, misses = np.array([[part(hit), part(miss)] for hit, miss in trials]).T
    return separation(hits, misses, random.getrandbits(32))


def separation(hits: Times, misses: Times, seed: int) -> Separation:
    """Measure the separation of times in seconds. `hits[i]` and `misses[i]` had the same load."""
    low, high = bootstrap_interval(hits, misses, seed)
    tens = len(hits) // 10
    return Separation(
        samples=len(hits),
        auc=auc(hits, misses),
        low=low,
        high=high,
        best_advantage=best_advantage(hits, misses),
        auc_of_tens=auc(_means(hits, tens), _means(misses, tens)) if tens >= 10 else None,
        hit_median_s=float(np.median(hits)),
        miss_median_s=float(np.median(misses)),
    )


def auc(hits: Times, misses: Times) -> float:
    """Compute Mann-Whitney's U over n x m: P(hit < miss) + P(hit == miss) / 2."""
    return _auc_of_ranks(*_ranks(hits, misses))


def bootstrap_interval(
    hits: Times, misses: Times, seed: int, resamples: int = _RESAMPLES
) -> tuple[float, float]:
    """Return the AUC's 95 % interval by resampling pairs, in which common load cancels."""
    random = np.random.default_rng(seed)
    of_hits, of_misses, count = _ranks(hits, misses)
    drawn = [
        _auc_of_ranks(of_hits[chosen], of_misses[chosen], count)
        for chosen in (random.integers(len(hits), size=len(hits)) for _ in range(resamples))
    ]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


def _ranks(hits: Times, misses: Times) -> tuple[Ranks, Ranks, int]:
    """Rank hits and misses together. Returns also the number of different times."""
    different, ranks = np.unique(np.concatenate((hits, misses)), return_inverse=True)
    return ranks[: len(hits)], ranks[len(hits) :], len(different)


def _auc_of_ranks(hits: Ranks, misses: Ranks, count: int) -> float:
    """Compute the AUC from ranks below `count`, without sorting, since it is resampled often."""
    num_hits, num_misses = (np.bincount(one, minlength=count) for one in (hits, misses))
    slower = len(misses) - np.cumsum(num_misses)
    return float((num_hits * (slower + num_misses / 2)).sum() / (len(hits) * len(misses)))


def best_advantage(hits: Times, misses: Times) -> float:
    """Return the maximum gain, TPR - FPR, of guessing "hit" below a threshold."""
    thresholds = np.concatenate((hits, misses))
    true_positive = np.searchsorted(np.sort(hits), thresholds, side="right") / len(hits)
    false_positive = np.searchsorted(np.sort(misses), thresholds, side="right") / len(misses)
    return max(0.0, float((true_positive - false_positive).max()))


def _means(times: Times, groups: int) -> Times:
    means: Times = times[: groups * (len(times) // groups)].reshape(groups, -1).mean(axis=1)
    return means
