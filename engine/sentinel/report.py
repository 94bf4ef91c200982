"""The report of an answer that differed when it was checked. It contains no text.

A prompt is identified by a keyed digest. The engine makes the key when it starts, and never shows
it. Two reports about the same prompt can be recognised, but nobody can confirm a guess of the text.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import msgspec

from engine.link.messages import Welcome
from engine.link.stats.tier_stats import StateTier, TierTokens
from engine.sentinel.comparison import ScoreComparison, TokenDifference
from engine.sequences.sequence import Sequence

_PACKAGES = ("ratoon", "torch", "triton")
_KEY_BYTES = 32


class AnswerOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The circumstances of an answer that may matter: counts, tiers and settings."""

    request_id: str
    prompt: str  # keyed digest of the prompt's tokens, hexadecimal
    prompt_tokens: int
    answer_tokens: int
    found: TierTokens
    fetched_tokens: int
    state_tier: StateTier | None
    drafts: dict[str, tuple[int, int]]  # source -> (drafted, accepted) tokens
    is_constrained: bool
    has_adapter: bool


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A report of an answer that differed, and of the engine that gave it."""

    mean: float  # mean difference of the answer's log probabilities, in nats
    bound: float
    tokens: tuple[TokenDifference, ...]
    answer: AnswerOrigin
    fingerprint: str
    device: str
    dtype: str
    ranks: tuple[int, int]  # (tensor parallel, pipeline parallel) sizes
    versions: Mapping[str, str]


class Reporter:
    """A factory of reports for one engine."""

    def __init__(self, welcome: Welcome) -> None:
        self._welcome = welcome
        self._key = secrets.token_bytes(_KEY_BYTES)

    def origin(self, sequence: Sequence, answer_tokens: int) -> AnswerOrigin:
        """Describe the circumstances of a sequence's answer."""
        prompt = sequence.tokens[: sequence.prompt_len].tobytes()
        return AnswerOrigin(
            request_id=sequence.request_id,
            prompt=hashlib.blake2b(prompt, digest_size=16, key=self._key).hexdigest(),
            prompt_tokens=sequence.prompt_len,
            answer_tokens=answer_tokens,
            found=sequence.found,
            fetched_tokens=sequence.fetched,
            state_tier=sequence.state_tier,
            drafts=dict(sequence.draft_counts),
            is_constrained=sequence.constraint is not None,
            has_adapter=sequence.adapter is not None,
        )

    def report(self, origin: AnswerOrigin, comparison: ScoreComparison) -> Report:
        """Make the report of an answer that differed."""
        welcome = self._welcome
        return Report(
            mean=comparison.mean,
            bound=comparison.bound,
            tokens=comparison.largest,
            answer=origin,
            fingerprint=welcome.fingerprint.hex(),
            device=welcome.device,
            dtype=welcome.dtype,
            ranks=(welcome.tensor_parallel, welcome.pipeline_parallel),
            versions=_versions(),
        )


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
