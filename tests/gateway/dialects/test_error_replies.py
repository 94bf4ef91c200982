"""Every error of the gateway has an answer in every dialect, whatever it is made with."""

from __future__ import annotations

import msgspec
import pytest

from gateway.dialects.dialect import Dialect
from gateway.errors import (
    BadRequest,
    BudgetSpent,
    GatewayError,
    LimitReached,
    StateDiskFull,
    StateLost,
    shutting_down,
)
from gateway.startup.composition import DIALECTS
from gateway.tenant_limits import RateStatus

ERRORS = [
    BadRequest("it is wrong", param="messages"),
    BudgetSpent("nothing is left"),
    LimitReached("too many", reason="requests", standing=RateStatus(), retry_after_s=1.0),
    StateDiskFull(),
    StateLost("state_missing"),
    shutting_down(),
]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("error", ERRORS, ids=lambda one: type(one).__name__)
def test_an_error_has_an_answer_and_stays_as_it_is(dialect: Dialect, error: GatewayError) -> None:
    before = dict(vars(error))
    reply = dialect.error_reply(error, "0123")
    assert error.message in str(msgspec.json.decode(reply.body))
    assert reply.status >= error.status
    assert dialect.error_event(error, "0123")
    assert vars(error) == before
