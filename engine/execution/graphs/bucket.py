"""The capacity of a captured graph, and the places of its fields in the input tensor."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.execution.further_drafts import MOST_FOLLOWED
from engine.execution.row_fields import RING_FIELDS, STATE_FIELDS
from engine.execution.shared_prefixes import most_groups

ALIGNMENT = 4  # in int32 numbers, so that each field starts at a multiple of 16 bytes


@dataclass(frozen=True, slots=True)
class GraphBucket:
    """The capacity of a captured graph.

    The graph has `num_decodes` rows of one token, then `num_prefills` other rows with `num_new`
    tokens together.
    """

    num_decodes: int
    num_new: int = 0
    num_prefills: int = 0
    group_rows: int = 0  # maximum number of decodes in a group that shares a prefix; 0: no groups
    more_samples: int = 0  # number of sampled tokens, not counting the first of each row
    has_adapters: bool = field(default=False, kw_only=True)
    has_head: bool = field(default=False, kw_only=True)
    has_rings: bool = field(default=False, kw_only=True)
    has_states: bool = field(default=False, kw_only=True)

    @property
    def num_tokens(self) -> int:
        """The maximum number of tokens."""
        return self.num_decodes + self.num_new

    @property
    def num_rows(self) -> int:
        """The maximum number of rows."""
        return self.num_decodes + self.num_prefills

    @property
    def num_samples(self) -> int:
        """The maximum number of sampled tokens."""
        return self.num_rows + self.more_samples

    @property
    def follows(self) -> bool:
        """True if the model's draft head makes further drafts after samples."""
        return self.has_head and self.num_samples <= MOST_FOLLOWED

    def holds(self, other: GraphBucket) -> bool:
        """Return whether a step of the shape `other` fits this bucket."""
        return (
            other.group_rows == self.group_rows
            and other.num_decodes <= self.num_decodes
            and other.num_new <= self.num_new
            and other.num_prefills <= self.num_prefills
            and other.num_samples <= self.num_samples
        )

    def sizes(self) -> dict[str, int]:
        """Return the size of each field as a number of int32 values."""
        tokens, rows, samples = self.num_tokens, self.num_rows, self.num_samples
        return {
            **dict.fromkeys(("token_ids", "positions", "slots"), tokens),
            **({"next_ids": tokens, "drawn": samples} if self.has_head else {}),
            **(dict.fromkeys(("followed_firsts", "compared"), samples) if self.follows else {}),
            **({"window_slots": tokens} if self.has_rings else {}),
            **dict.fromkeys(("outputs", "output_slots"), samples),
            "pending_slots": tokens,
            **dict.fromkeys(("context_lens", "table_slots"), rows),
            **(dict.fromkeys(STATE_FIELDS, rows) if self.has_states else {}),
            **(dict.fromkeys(RING_FIELDS[:-1], rows) if self.has_rings else {}),
            "temperature": samples,
            "query_starts": rows + 1,
            "keys": 2 * samples,
            "units": 4 if self.group_rows else 2,
            **self._shared_sizes(),
            **({"adapters": tokens} if self.has_adapters else {}),
            **(dict.fromkeys(("followed_ends", "followed_slots"), samples) if self.follows else {}),
            **({"followed_splits": 2} if self.follows else {}),
        }

    def _shared_sizes(self) -> dict[str, int]:
        if not self.group_rows:
            return {}
        groups = most_groups(self.num_decodes)
        return {
            "group_starts": groups + 1,
            "key_ends": groups,
            "own_starts": self.num_decodes,
        }

    def offsets(self) -> dict[str, slice]:
        """Return the slice of each field in the flat tensor."""
        places, end = {}, 0
        for name, size in self.sizes().items():
            places[name] = slice(end, end + size)
            end += -(-size // ALIGNMENT) * ALIGNMENT
        return places

    @property
    def total(self) -> int:
        """The size of the flat tensor as a number of int32 values."""
        return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in self.sizes().values())
