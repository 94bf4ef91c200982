"""The expected cache of a replica, once it has computed the prompts sent to it.

Requests that begin alike come in swarms, before the first of them is computed. A prompt therefore
counts as cached on its replica from its sending to its first token. From then on the replica itself
reports its blocks. Only some beginnings of a prompt are stored (`Prompt.marks`). The common prefix
of two prompts is therefore found a little too short.
"""

from bisect import bisect_left
from collections.abc import Sequence

# beginnings of a prompt: the number of blocks, and the last block's key
Marks = Sequence[tuple[int, int]]


class Expected:
    """The prompts that were sent to one replica, and whose answers have not begun."""

    def __init__(self) -> None:
        # number of prompts with each beginning, by the key of the beginning's last block
        self._prompts: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._prompts)

    def add(self, marks: Marks) -> None:
        """Add a prompt that was sent to the replica."""
        for _, key in marks:
            self._prompts[key] = self._prompts.get(key, 0) + 1

    def remove(self, marks: Marks) -> None:
        """Remove a prompt whose answer has begun, or never will begin."""
        for _, key in marks:
            if self._prompts[key] > 1:
                self._prompts[key] -= 1
            else:
                del self._prompts[key]

    def blocks(self, marks: Marks) -> int:
        """Count the first blocks of a prompt that the replica is expected to have."""
        if not marks or marks[0][1] not in self._prompts:
            return 0
        known = bisect_left(marks, True, key=lambda mark: mark[1] not in self._prompts)
        return marks[known - 1][0]
