"""Log-probabilities of many tokens, packed into a few arrays to save memory."""

from array import array
from collections.abc import Iterable, Sequence
from typing import overload

from engine.link.event_messages import TokenLogprobs

_NO_RANK = 0  # stands for a missing rank, since ranks begin at 1
_EACH = 20  # bytes of a token without its top candidates: float64, int32, int64


def packed_bytes(found: TokenLogprobs) -> int:
    """Return the bytes that `found` takes in `PackedLogprobs`."""
    return _EACH + len(found.top_ids) + len(found.top_values)


class PackedLogprobs(Sequence[TokenLogprobs]):
    """A packed, growing list of `TokenLogprobs`, each unpacked on access."""

    def __init__(self, found: Iterable[TokenLogprobs] = ()) -> None:
        self._chosen = array("d")
        self._ranks = array("i")
        # index of the end of each token's candidates in the next two arrays
        self._ends = array("q")
        self._top_ids = bytearray()
        self._top_values = bytearray()
        self.extend(found)

    @property
    def nbytes(self) -> int:
        """The bytes of the packed log-probabilities."""
        return _EACH * len(self) + len(self._top_ids) + len(self._top_values)

    def extend(self, found: Iterable[TokenLogprobs]) -> None:
        """Append the log-probabilities in `found`."""
        for one in found:
            self._chosen.append(one.chosen)
            self._ranks.append(_NO_RANK if one.rank is None else one.rank)
            self._top_ids += one.top_ids
            self._top_values += one.top_values
            self._ends.append(len(self._top_ids))

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, at: int) -> TokenLogprobs: ...

    @overload
    def __getitem__(self, at: slice) -> list[TokenLogprobs]: ...

    def __getitem__(self, at: int | slice) -> TokenLogprobs | list[TokenLogprobs]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        begin = self._ends[at - 1] if at else 0
        end = self._ends[at]
        return TokenLogprobs(
            self._chosen[at],
            bytes(self._top_ids[begin:end]),
            bytes(self._top_values[begin:end]),
            self._ranks[at] or None,
        )
