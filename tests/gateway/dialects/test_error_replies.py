"""Every error of the gateway has a reply in every dialect, with any arguments."""

from __future__ import annotations

import msgspec
import pytest

from gateway.dialects.dialect import Dialect
from gateway.dialects.gemini.errors import gemini_error
from gateway.dialects.openai_shape import error_body
from gateway.errors import (
    BadRequest,
    BudgetSpent,
    GatewayError,
    LimitReached,
    StateDiskFull,
    StateLost,
    shutting_down,
)
from gateway.http.cors import Cors
from gateway.http.error_dialect import Dialects
from gateway.startup.composition import DIALECTS
from gateway.tenant_limits import Allowance, RateStatus
from tests.doubles.lines_dialect import Lines

LEFT = RateStatus(requests=Allowance(5, 0, 1.0), tokens=Allowance(9, 3, 1.0))
ERRORS = [
    BadRequest("it is wrong", param="messages"),
    BudgetSpent("nothing is left"),
    LimitReached("too many", reason="requests", standing=LEFT, retry_after_s=1.0),
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


def hidden(dialect: Dialect) -> set[str]:
    """List the header fields of the dialect's answers that scripts of other origins cannot read."""
    sent = {name for error in ERRORS for name in dialect.error_reply(error, "0123").headers}
    sent |= {name.decode() for name, _ in dialect.head_fields("0123", 1.0)}
    return sent - {*dialect.exposed}


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda one: type(one).__name__)
def test_pages_of_listed_origins_may_read_every_header_field(dialect: Dialect) -> None:
    assert hidden(dialect) == set()
    told = dict(Cors(["*"], Dialects(dialect).exposed).fields({"type": "http", "headers": []}))
    names = told[b"access-control-expose-headers"].decode().split(", ")
    assert {"retry-after", *dialect.exposed} <= {*names}
    control = Lines()
    control.exposed = ()  # type: ignore[misc]
    assert hidden(control) == {"lines-code", "lines-id"}


def test_googles_clients_are_told_not_to_retry_what_no_retry_mends() -> None:
    """Ask Google's clients for a delay of more than 5 minutes, at which gemini-cli gives up at
    once.
    """
    body = msgspec.to_builtins(gemini_error(BudgetSpent("nothing is left")))
    [retry] = [one for one in body["error"]["details"] if "retryDelay" in one]
    assert float(retry["retryDelay"].removesuffix("s")) > 300


def test_openais_text_of_a_too_long_prompt_has_the_code() -> None:
    """Put the code into the message too: LangChain looks for it in the text of OpenAI's error."""
    error = BadRequest("it is too long", code="context_length_exceeded", param="messages")
    assert (
        error_body(error, error.param).error.message == "it is too long (context_length_exceeded)"
    )


def test_clients_of_flat_errors_find_the_reason_beside_error() -> None:
    """Repeat the message beside `error`: Mistral's, Cerebras' and Cohere's clients show the body's
    `message`.
    """
    for param in ("messages", None):
        body = msgspec.to_builtins(error_body(ERRORS[0], param))
        nested = body.pop("error")
        assert (nested["message"], nested["param"]) == ("it is wrong", param)
        assert body == nested | {"object": "error", "param": param or ""}
