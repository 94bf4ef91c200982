"""The errors of requests that reach a limit of their tenant."""

from __future__ import annotations

from gateway.errors import BudgetSpent, GatewayError, LimitReached
from gateway.limits.fitting import advice
from gateway.limits.limiter import Demand, Denied
from gateway.limits.token_bucket import most_running
from gateway.prompts.generation_request import AdmittedRequest
from gateway.tenant_limits import MICRO

# the words for budgets' periods in error messages
_SHARES = {"month": "a month", "total": "in all"}


def refusal(
    refused: Denied, demand: Demand, admitted: AdmittedRequest | None = None
) -> GatewayError:
    """Make the error for a refusal, with advice if the request can never pass."""
    if refused.reason == "budget":
        return BudgetSpent(_budget_text(demand))
    limits = demand.limits
    more = ""
    if refused.retry_after_s is None and admitted is not None:
        others = admitted.prompt_tokens + admitted.prediction_tokens
        more = advice(limits, others, len(admitted.generates), demand.most.tokens)
    texts = {
        "requests": f"limited to {limits.requests_per_minute} requests a minute",
        "tokens": f"limited to {limits.tokens_per_minute} tokens a minute; this request may need "
        f"{demand.most.tokens}{more}",
        "concurrent": f"limited to {most_running(limits)} requests at once",
    }
    return LimitReached(
        texts[refused.reason],
        reason=refused.reason,
        standing=refused.standing,
        retry_after_s=refused.retry_after_s,
    )


def _budget_text(demand: Demand) -> str:
    budget = demand.limits.budget
    assert budget is not None, "only a request with a budget is refused for its budget"
    until = ""
    if budget.period == "month" and demand.most.cost <= budget.units * MICRO:
        until = "wait for the next month (UTC), or "
    return (
        f"limited to {budget.units:.10g} units {_SHARES[budget.period]}; "
        f"those left do not cover this request: {until}have the budget raised"
    )
