from __future__ import annotations

import msgspec
import pytest

from engine.errors import MOST_SAID, EngineError, RequestRefused, cut, error_from_code
from gateway.errors import BadRequest, GatewayError, TooManyRequests, from_engine
from gateway.http.bodies.body import parse_part

LONG = "begins " + "x" * 1_000_000 + " ends"


class Known(msgspec.Struct, forbid_unknown_fields=True):
    size: int = 0


def test_what_is_short_is_said_whole_and_of_what_is_long_both_ends() -> None:
    whole = "x" * MOST_SAID
    assert cut(whole) == whole
    short = cut(LONG)
    assert len(short) == MOST_SAID
    assert short.startswith("begins xxx")
    assert short.endswith("xxx ends")
    assert f"[{len(LONG) - MOST_SAID} characters more]" in short


@pytest.mark.parametrize("kind", [GatewayError, BadRequest])
def test_an_error_is_as_long_as_can_be_kept(kind: type[GatewayError]) -> None:
    error = kind(LONG, param=LONG)
    assert str(error) == error.message == cut(LONG)
    assert error.param is not None
    assert len(error.param) == 200
    plain = kind("no such field", param="messages[0].content")
    assert (plain.message, plain.param) == ("no such field", "messages[0].content")


def test_what_the_engine_says_is_cut_before_it_is_sent() -> None:
    refused = RequestRefused(LONG)
    assert str(refused) == refused.message == cut(LONG)
    assert from_engine(refused).message == cut(LONG)
    again: EngineError = error_from_code(refused.code, refused.message)
    assert again.message == refused.message


@pytest.mark.parametrize("name", ["sise", "s" * 1_000_000, "\U0001f600" * 100_000])
def test_a_field_that_a_client_names_is_quoted_up_to_a_length(name: str) -> None:
    body = msgspec.json.encode({name: 1})
    with pytest.raises(BadRequest) as refused:
        parse_part(msgspec.json.Decoder(Known), body)
    assert name[:10] in refused.value.message
    assert len(refused.value.message) <= MOST_SAID
    assert refused.value.param is not None
    assert refused.value.param == cut(name, 200)


def test_a_refusal_says_its_delay_in_words_that_clients_of_openai_read() -> None:
    """Write the delay into the message too: Codex, for one, reads `try again in 1.200s`."""
    refused = TooManyRequests("limited to 60 requests a minute", retry_after_s=1.2)
    assert refused.message == "limited to 60 requests a minute; please try again in 1.200s"
    assert refused.code == "rate_limit_exceeded"
    assert TooManyRequests("too long").message == "too long"
