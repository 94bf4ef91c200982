"""The choice whether another engine computes a prompt for the answering engine, and which engine.

A prompt in a step with decodes makes the step longer. An engine that only computes prompts has no
decodes to delay. Blocks that the answering engine has cached need not be sent. The answering engine
computes a prompt itself if it has cached most of the prompt, or if the other engines would be late.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.link.messages import Role
from gateway.routing.prompt import RoutingRequest
from gateway.routing.router import Router, RoutingChoice, Sources

RoleOf = Callable[[str], Role]


def prefill_id(request_id: str) -> str:
    """Name the prefill of a request on the engine that computes it for another engine."""
    return f"{request_id}~p"


@dataclass(frozen=True, slots=True)
class RemotePrefillLimits:
    """The limits within which a prompt is computed on another engine."""

    least_tokens: int = 512  # minimum number of tokens to compute; fewer hardly lengthen a step
    # maximum time to the first token, as a multiple of the time that the answering engine alone
    # would take
    patience: float = 4.0


def answering(names: Sequence[str], role_of: RoleOf) -> Sequence[str]:
    """List the replicas that decode, or all replicas if none decodes."""
    return [name for name in names if role_of(name) != "prefill"] or names


def computing(names: Sequence[str], role_of: RoleOf) -> Sequence[str]:
    """List the replicas that compute prompts for other replicas."""
    return [name for name in names if role_of(name) == "prefill"]


def prefill_choice(
    router: Router,
    request: RoutingRequest,
    answer: RoutingChoice,
    able: Sequence[str],
    sources: Sources,
    limits: RemotePrefillLimits,
) -> RoutingChoice | None:
    """Choose which of the `able` engines computes the prompt for the answering engine.

    Returns None if the answering engine computes it.
    """
    if not able or is_short(request.tokens, answer, limits):
        return None
    prompt = router.choose(request, able, sources)
    return None if is_late(answer, prompt, limits) else prompt


def is_short(prompt_tokens: int, answer: RoutingChoice, limits: RemotePrefillLimits) -> bool:
    """Return whether the uncached part is so short that the answering engine computes it."""
    computes = prompt_tokens if answer.computes is None else answer.computes
    return computes < limits.least_tokens


def is_late(answer: RoutingChoice, prompt: RoutingChoice, limits: RemotePrefillLimits) -> bool:
    """Return whether a remote prefill would end much later than the answering engine's prefill."""
    if answer.first_token_s is None or prompt.first_token_s is None:
        return False
    return prompt.first_token_s > limits.patience * answer.first_token_s
