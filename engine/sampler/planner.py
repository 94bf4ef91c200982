"""Works out, before the logits are there, what a step's sampling needs.

Rows fall into groups that are chosen alike; what no row asks for costs nothing.

Knows: `SamplingParams` and sequences' tokens. Does not know: tensors, logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.messages import SamplingParams
from engine.sampler.noise import noise_key
from engine.sampler.plan import Draw, Edits, FilteredDraw, HostPlan, Penalties, SamplingPlan, Wanted
from engine.sequence import Sequence as TokenSequence
from engine.staging import HostArray

# Below this a temperature no longer changes which token wins, and dividing by it may overflow.
GREEDY_TEMPERATURE = 1e-5
NO_TOP_P = 2.0  # above any cumulated probability, however rounded
SMALLEST_TOP_P = 1e-9  # keeps the most likely token, where 0 would keep none


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes plans for one model. `fresh_seed` gives 64 bits to rows without a seed."""

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    fresh_seed: Callable[[], int]

    def plan(self, sequences: Sequence[TokenSequence]) -> HostPlan:
        """How the next token of each of `sequences` is to be chosen."""
        groups: dict[str, list[int]] = {"plain": [], "filtered": []}
        for row, sequence in enumerate(sequences):
            groups[_group(sequence.sampling)].append(row)
        plain = groups["plain"]
        return SamplingPlan(
            plain=self._draw(sequences, plain) if plain else None,
            filtered=self._filtered(sequences, groups["filtered"]),
            penalties=self._penalties(sequences),
            edits=self._edits(sequences),
            wanted=self._wanted(sequences),
        )

    def plain(self, sequences: Sequence[TokenSequence]) -> Draw[HostArray] | None:
        """All of `sequences` as one group; None where one of them asks for more than a draw."""
        if not all(is_plain(sequence.sampling) for sequence in sequences):
            return None
        return self._draw(sequences, list(range(len(sequences))))

    def _draw(self, sequences: Sequence[TokenSequence], rows: list[int]) -> Draw[HostArray]:
        keys = [self._key(sequences[row]) for row in rows]
        temperatures = [_temperature(sequences[row].sampling) for row in rows]
        return Draw(
            rows=np.array(rows, dtype=np.int64),
            keys=np.array(keys, dtype=np.int32),
            temperature=np.array(temperatures, dtype=np.float32),
        )

    def _key(self, sequence: TokenSequence) -> tuple[int, int]:
        if _is_greedy(sequence.sampling):
            return 0, 0
        seed = sequence.sampling.seed
        return noise_key(self.fresh_seed() if seed is None else seed, sequence.length)

    def _filtered(
        self, sequences: Sequence[TokenSequence], rows: list[int]
    ) -> FilteredDraw[HostArray] | None:
        if not rows:
            return None
        wishes = [sequences[row].sampling for row in rows]
        top_k = [min(wish.top_k or self.vocab_size, self.vocab_size) for wish in wishes]
        min_p = np.array([wish.min_p for wish in wishes], dtype=np.float32)
        with np.errstate(divide="ignore"):
            log_min_p = np.log(min_p)
        return FilteredDraw(
            draw=self._draw(sequences, rows),
            top_k=np.array(top_k, dtype=np.int64),
            top_p=np.array([_top_p(wish) for wish in wishes], dtype=np.float32),
            log_min_p=log_min_p,
            limits_k=min(top_k) < self.vocab_size,
        )

    def _penalties(self, sequences: Sequence[TokenSequence]) -> Penalties[HostArray] | None:
        rows = [row for row, sequence in enumerate(sequences) if is_penalised(sequence.sampling)]
        if not rows:
            return None
        chosen = [sequences[row] for row in rows]
        wishes = [sequence.sampling for sequence in chosen]
        prompts = [
            sequence.tokens[: sequence.prompt_len]
            if sequence.sampling.repetition_penalty != 1.0
            else sequence.tokens[:0]
            for sequence in chosen
        ]
        return Penalties(
            rows=np.array(rows, dtype=np.int64),
            presence=np.array([wish.presence_penalty for wish in wishes], dtype=np.float32),
            frequency=np.array([wish.frequency_penalty for wish in wishes], dtype=np.float32),
            repetition=np.array([wish.repetition_penalty for wish in wishes], dtype=np.float32),
            output_index=self._flat([sequence.output_ids for sequence in chosen]),
            prompt_index=self._flat(prompts),
            pending=np.array(
                [index for index, sequence in enumerate(chosen) if sequence.num_pending],
                dtype=np.int64,
            ),
        )

    def _flat(self, tokens_by_row: Sequence[npt.NDArray[np.int32]]) -> HostArray:
        parts = [
            tokens.astype(np.int64) + row * self.vocab_size
            for row, tokens in enumerate(tokens_by_row)
        ]
        return np.concatenate(parts)

    def _edits(self, sequences: Sequence[TokenSequence]) -> Edits[HostArray] | None:
        bias: dict[int, float] = {}
        banned: list[int] = []
        for row, sequence in enumerate(sequences):
            first = row * self.vocab_size
            for token_id, value in sequence.sampling.logit_bias.items():
                bias[first + token_id] = value
            banned += [first + token_id for token_id in self._banned(sequence)]
        if not bias and not banned:
            return None
        return Edits(
            bias_index=np.array(list(bias), dtype=np.int64),
            bias=np.array(list(bias.values()), dtype=np.float32),
            banned_index=np.array(banned, dtype=np.int64),
        )

    def _banned(self, sequence: TokenSequence) -> set[int]:
        """Tokens that would end the sequence before it has its `min_tokens`."""
        wish = sequence.sampling
        if sequence.length - sequence.prompt_len >= wish.min_tokens:
            return set()
        ending = {*wish.stop_token_ids, *(() if wish.ignore_eos else self.eos_token_ids)}
        # An id beyond the vocabulary can be asked for as a stop, but not sampled.
        return {token_id for token_id in ending if 0 <= token_id < self.vocab_size}

    def _wanted(self, sequences: Sequence[TokenSequence]) -> Wanted[HostArray] | None:
        counts = {
            row: min(sequence.sampling.num_logprobs, self.vocab_size)
            for row, sequence in enumerate(sequences)
            if sequence.sampling.num_logprobs is not None
        }
        if not counts:
            return None
        return Wanted(np.array(list(counts), dtype=np.int64), tuple(counts.values()))


def is_plain(wish: SamplingParams) -> bool:
    """Whether nothing but a draw from the logits is asked for, at any temperature."""
    return (
        _group(wish) == "plain"
        and wish.num_logprobs is None
        and not wish.min_tokens
        and not wish.logit_bias
        and not is_penalised(wish)
    )


def _group(wish: SamplingParams) -> str:
    if _is_greedy(wish):
        return "plain"
    filtered = wish.top_k > 0 or wish.top_p < 1.0 or wish.min_p > 0.0
    return "filtered" if filtered else "plain"


def _top_p(wish: SamplingParams) -> float:
    return NO_TOP_P if wish.top_p >= 1.0 else max(wish.top_p, SMALLEST_TOP_P)


def _is_greedy(wish: SamplingParams) -> bool:
    return wish.temperature < GREEDY_TEMPERATURE or wish.top_k == 1


def _temperature(wish: SamplingParams) -> float:
    return 0.0 if _is_greedy(wish) else wish.temperature


def is_penalised(wish: SamplingParams) -> bool:
    """Whether tokens that are there already change the logits."""
    return (
        wish.presence_penalty != 0.0
        or wish.frequency_penalty != 0.0
        or wish.repetition_penalty != 1.0
    )
