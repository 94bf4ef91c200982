import pytest

from cli.asking.turn import Turn
from cli.errors import ServerRefused

USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":6}}}'
)


def test_text_is_passed_on_and_the_first_is_timed() -> None:
    turn = Turn(sent_at=10.0)
    assert turn.hear(b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}', 10.1) == ""
    assert turn.hear(b'data: {"choices":[{"delta":{"content":"Hello"}}]}', 10.25) == "Hello"
    assert turn.hear(b'data: {"choices":[{"delta":{"content":" you"}}]}\n', 10.5) == " you"
    for quiet in (b": keep-alive", b"", b"event: x", USAGE, b"data: [DONE]\n"):
        assert turn.hear(quiet, 11.0) == ""
    assert turn.text == "Hello you"
    assert turn.numbers() == "[cached 6 of 9 prompt tokens, first token after 250 ms]"


def test_an_answer_without_text_says_so() -> None:
    turn = Turn(sent_at=0.0)
    turn.hear(USAGE, 1.0)
    assert turn.numbers() == "[cached 6 of 9 prompt tokens, no token came]"


def test_an_error_in_the_stream_is_raised() -> None:
    with pytest.raises(ServerRefused, match="the engine died"):
        Turn(sent_at=0.0).hear(b'data: {"error":{"message":"the engine died"}}', 1.0)
