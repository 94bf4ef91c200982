"""The simplest router: the replica with the fewest tokens under way, whatever is cached there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from engine.link.messages import Generate, Reused, Timing

_ID_BYTES = 4


class LeastTokens:
    """Counts the tokens of prompts that are not computed yet, and of answers that may come.

    Of equals the first replica is chosen.
    """

    def __init__(self) -> None:
        self._under_way: defaultdict[str, dict[str, int]] = defaultdict(dict)

    def choose(self, request: Generate, ready: Sequence[str]) -> str:
        """The first of those with the fewest tokens."""
        del request
        return min(ready, key=lambda name: sum(self._under_way[name].values()))

    def sent(self, replica: str, request: Generate) -> None:
        """Count it."""
        prompt = len(request.token_ids) // _ID_BYTES
        self._under_way[replica][request.request_id] = prompt + request.sampling.max_tokens

    def began(
        self, replica: str, request_id: str, reused: Reused | None, timing: Timing | None
    ) -> None:
        """What is cached makes no difference here."""

    def ended(self, replica: str, request_id: str) -> None:
        """Count it no more."""
        self._under_way[replica].pop(request_id, None)

    def gone(self, replica: str) -> None:
        """Nothing is under way there."""
        self._under_way.pop(replica, None)
