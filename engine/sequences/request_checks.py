"""The checks of a request's fields. Each check raises InvalidRequest.

Elsewhere: the checks that depend on the cache and on the model's context (`intake.py`).
"""

from __future__ import annotations

import numpy as np

from engine.errors import InvalidRequest
from engine.link.messages import Generate, LogitBias, Mark, SamplingParams

MAX_WEIGHT = 1e6
MAX_ID_CHARS = 256
MAX_STOP_TOKENS = 1024
MAX_LOGPROBS = 128
MAX_PROMPT_REPORT = 4 << 20  # maximum bytes of a prompt's log probabilities
MAX_MARKS = 8
MAX_RETAINED_S = 7 * 24 * 3600.0
MAX_TOP_K = 2**31 - 1
FLOAT32_MAX = 3.4e38  # largest number that the sampler can handle
FLOAT32_LEAST = 1.2e-38  # smallest positive number that the sampler can handle
WHOLE = (0.0, 1.0)  # quota without minimum and maximum
_UNKNOWN_TOKEN = "a sampling parameter names a token outside of the vocabulary"


def check_scoring(request: Generate, prompt_len: int) -> None:
    """Check that a scored prompt does not use the cache, and that its scores fit a message."""
    likeliest = request.sampling.prompt_logprobs
    if likeliest is None:
        return
    if request.use_cache:
        raise InvalidRequest("a prompt that is scored does not use the cache")
    if prompt_len * 8 * (likeliest + 2) > MAX_PROMPT_REPORT:
        raise InvalidRequest(
            f"{likeliest} log-probabilities of each of {prompt_len} tokens of a prompt are more "
            f"than {MAX_PROMPT_REPORT} bytes"
        )


def check_fields(request: Generate) -> None:
    """Check the fields that concern neither the prompt nor the sampling."""
    if request.source is not None and request.source.only and not request.use_cache:
        raise InvalidRequest("what is only to be fetched has to use the cache")
    if (request.embeds or request.candidates) and request.sampling.max_tokens:
        raise InvalidRequest("a prompt off which something is read is not continued")
    longest = max(map(len, (request.request_id, request.flow, request.writer)))
    if not request.request_id or longest > MAX_ID_CHARS:
        raise InvalidRequest("an id is empty or too long")
    if not 0 < request.weight <= MAX_WEIGHT:  # also refuses NaN
        raise InvalidRequest(f"the weight is not a number above 0 and up to {MAX_WEIGHT:g}")
    floor, ceiling = request.cache_quota or WHOLE
    if not 0.0 <= floor <= ceiling <= 1.0:
        raise InvalidRequest("the cache quota is not 0 <= floor <= ceiling <= 1")


def check_places(request: Generate, prompt_len: int) -> None:
    """Check that the question and the adapter begin within the prompt."""
    if not 0 <= request.question <= prompt_len:
        raise InvalidRequest("the question begins outside of the prompt")
    if request.adapter is not None and not 0 <= request.adapter.start < max(prompt_len, 1):
        raise InvalidRequest("the adapter's first token is outside of the prompt")


def check_marks(marks: tuple[Mark, ...], prompt_len: int) -> None:
    """Check the number, order and times of the marks of a prompt."""
    ends = [mark.num_tokens for mark in marks]
    if len(marks) > MAX_MARKS or ends != sorted(ends):
        raise InvalidRequest("too many marks, or not in order")
    if ends and not 0 <= ends[0] <= ends[-1] <= prompt_len:
        raise InvalidRequest("a mark is outside of the prompt")
    if not all(0 < mark.seconds <= MAX_RETAINED_S for mark in marks):  # also refuses NaN
        raise InvalidRequest("the time of a mark is out of its range")


def check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    """Check the parameters of sampling over a vocabulary of `vocab_size` tokens."""
    numbers = (
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.repetition_penalty,
    )
    if not all(abs(number) <= FLOAT32_MAX for number in numbers):  # also refuses NaN
        raise InvalidRequest("a sampling parameter is not finite")
    if (
        sampling.temperature < 0
        or sampling.repetition_penalty < FLOAT32_LEAST
        or sampling.max_tokens < 0
        or sampling.min_tokens < 0
        or not 0 <= sampling.top_k <= MAX_TOP_K
    ):
        raise InvalidRequest("a sampling parameter is out of its range")
    most = max(sampling.num_logprobs or 0, sampling.prompt_logprobs or 0)
    least = min(sampling.num_logprobs or 0, sampling.prompt_logprobs or 0)
    if not 0 <= least <= most <= min(MAX_LOGPROBS, vocab_size):
        raise InvalidRequest("more logprobs than are kept")
    if len(sampling.stop_token_ids) > MAX_STOP_TOKENS:
        raise InvalidRequest("too many stop tokens")
    if any(not 0 <= token_id < vocab_size for token_id in sampling.stop_token_ids):
        raise InvalidRequest(_UNKNOWN_TOKEN)
    _check_bias(sampling.logit_bias, vocab_size)
    if sampling.seed is not None and not -(2**63) <= sampling.seed < 2**63:
        raise InvalidRequest("the seed has more than 64 bits")


def _check_bias(bias: LogitBias, vocab_size: int) -> None:
    if len(bias.token_ids) % 4 or len(bias.token_ids) != len(bias.values):
        raise InvalidRequest("the biases do not fit their tokens")
    if not bias.token_ids:
        return
    token_ids = np.frombuffer(bias.token_ids, "<i4")
    if token_ids.min() < 0 or token_ids.max() >= vocab_size:
        raise InvalidRequest(_UNKNOWN_TOKEN)
    if not np.isfinite(np.frombuffer(bias.values, "<f4")).all():
        raise InvalidRequest("a sampling parameter is not finite")
