"""The comparison of a prompt with an earlier prompt of its tenant: their first difference.

The earlier prompt is the prompt that the request names. By default it is the prompt with the
longest common prefix. If no common prefix has a whole KV block, it is the latest prompt with mostly
the same tokens. Prompts under another salt are compared only if the request names them, and nothing
about them is shown.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from gateway.diagnosis.parts import PartKind, PromptPart, Within, part_at
from gateway.diagnosis.seen import SeenPrompt, SeenPrompts
from gateway.diagnosis.volatile import VolatileKind, kind_at
from prefix_cache.hashing import TokenIds

Change = Literal[VolatileKind, "reordered", "added", "removed", "reasoning_effort", "text"]
Decode = Callable[[list[int]], str]
T = TypeVar("T")
# yields the work of the next step, in units of one tokenised character
Reading = Generator[int, None, T]

EXCERPT = 40  # characters on each side of a difference
_LATEST = 64  # number of latest prompts that are compared
_ALIKE_OF = 16
_ALIKE = 0.5  # minimum fraction of distinct tokens that two similar prompts share
_WHOLE = PromptPart("prompt", "messages", "")
# bytes of a prompt that take as long to read as one character takes to tokenise
_BYTES_PER_CHARACTER = 64
_WINDOW = 96  # tokens on each side of the first difference; their text is compared


@dataclass(frozen=True, slots=True)
class Explain:
    """A request to explain why its prompt missed the cache."""

    previous_id: str | None = None
    # parts of the prompt; None or too many parts: the whole prompt is one part
    parts: tuple[PromptPart, ...] | None = ()


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of two prompts, and the characters around it in each prompt."""

    token: int
    kind: PartKind | None  # None: text of the template itself
    part: str | None
    change: Change
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """A prompt and an earlier prompt. `seen` is None if no earlier prompt is comparable."""

    new: SeenPrompt
    block_size: int
    is_known: bool = True  # False: the gateway remembers no prompts
    named: str | None = None
    seen: SeenPrompt | None = None
    common: int = 0
    divergence: Divergence | None = None
    age_s: float = 0.0


def compare(
    memory: SeenPrompts,
    tenant_id: str,
    new: SeenPrompt,
    explain: Explain,
    block_size: int,
    decode: Decode,
) -> Reading[Comparison]:
    """Compare `new` with the named earlier prompt, or else with the most similar prompt.

    Each step of this generator reads one earlier prompt, or all of `new`.
    """
    named, ids = explain.previous_id, new.token_ids
    if not memory.is_on:
        return Comparison(new, block_size, is_known=False)
    if named is not None:
        seen = memory.named(tenant_id, named)
    else:
        latest = memory.latest(tenant_id, _LATEST)
        alike = [one for one in latest if one.salt == new.salt]
        seen = yield from _most_alike(alike, ids, block_size)
    if seen is None or seen.salt != new.salt:
        return Comparison(new, block_size, named=named, seen=seen)
    common = common_tokens(ids, seen.token_ids)
    divergence = None
    if common < min(len(ids), len(seen.token_ids)):
        divergence = yield from _divergence(seen, new, common, explain.parts, decode)
    age_s = memory.age_s(seen)
    return Comparison(
        new, block_size, named=named, seen=seen, common=common, divergence=divergence, age_s=age_s
    )


def common_tokens(one: TokenIds, other: TokenIds) -> int:
    """Count the tokens of two prompts' common prefix."""
    length = min(len(one), len(other))
    differ = one[:length] != other[:length]
    return int(differ.argmax()) if differ.any() else length


def _most_alike(
    latest: Sequence[SeenPrompt], ids: TokenIds, block_size: int
) -> Reading[SeenPrompt | None]:
    """Find the prompt that shares most KV blocks with `ids`, or else the latest similar prompt."""
    best, most = None, 0
    for one in latest:
        yield 0  # costs nothing, since at most `len(ids)` tokens are compared
        blocks = common_tokens(ids, one.token_ids) // block_size
        if blocks > most:
            best, most = one, blocks
    if best is not None:
        return best
    different = _different(ids)
    for one in latest[:_ALIKE_OF]:
        yield len(one.packed) // _BYTES_PER_CHARACTER
        others = _different(one.token_ids)
        shorter = min(len(different), len(others))
        both = np.count_nonzero(different[:shorter] & others[:shorter])
        either = np.count_nonzero(different) + np.count_nonzero(others) - both
        if both >= _ALIKE * either:
            return one
    return None


def _different(ids: TokenIds) -> npt.NDArray[np.bool_]:
    """Return a mask of the token ids that occur in `ids`. Sorting the ids would take longer."""
    found = np.zeros(ids.max(initial=0) + 1, np.bool_)
    found[ids] = True
    return found


def _divergence(
    seen: SeenPrompt,
    new: SeenPrompt,
    token: int,
    parts: Sequence[PromptPart] | None,
    decode: Decode,
) -> Reading[Divergence]:
    """Describe the difference at `token` in characters.

    Different tokens may begin with the same characters.
    """
    ids = new.token_ids
    start = max(0, token - _WINDOW)
    lead = decode(ids[start:token].tolist())
    before, after = (
        lead + decode(one.token_ids[token : token + _WINDOW].tolist()) for one in (seen, new)
    )
    at = first_difference(before, after)
    within = None
    if parts is not None:
        place = len(decode(ids[:start].tolist())) + at
        within = yield from part_at(parts, decode(ids.tolist()), place)
    within = within or Within(_WHOLE, "inside")
    kind = _kind(within, seen, new)
    change: Change | None = None
    if kind == "tools":
        change = _tools_change(seen.tools, new.tools)
    elif kind is None and seen.effort != new.effort:
        change = "reasoning_effort"
    if change is None:
        change = _change(before, after, at)
    part = within.part if within.part is not None and within.part.kind == kind else None
    return Divergence(
        token,
        kind,
        "tools" if kind == "tools" and part is None else part and part.name,
        change,
        *(one[max(0, at - EXCERPT) : at + EXCERPT] for one in (before, after)),
    )


def first_difference(one: str, other: str) -> int:
    """Find the index of the first differing character, or the length of the shorter text."""
    length = min(len(one), len(other))
    return next((at for at in range(length) if one[at] != other[at]), length)


def _kind(within: Within, seen: SeenPrompt, new: SeenPrompt) -> PartKind | None:
    part, side = within
    if part is not None and (side == "inside" or part.kind == "tools"):
        return part.kind
    if seen.tools != new.tools:
        return "tools"
    if seen.has_system != new.has_system:
        return "system"
    if part is None or (side == "before" and part.kind == "system"):
        return None
    return part.kind


def _tools_change(before: Sequence[str], after: Sequence[str]) -> Change | None:
    """Name the change in the list of tools; None if only a definition changed."""
    if before == after:
        return None
    if sorted(before) == sorted(after):
        return "reordered"
    return "removed" if set(after) < set(before) else "added"


def _change(before: str, after: str, at: int) -> Change:
    kind = kind_at(after, at)
    return kind if kind is not None and kind == kind_at(before, at) else "text"
