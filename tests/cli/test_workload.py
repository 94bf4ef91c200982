import json

import pytest

from cli.client_options import LoadFlags
from cli.errors import BadSetting
from cli.workload import FIRST_ID, WORDS, draw_bodies

LOAD = LoadFlags(requests=6, prompt_tokens=40, shared_tokens=24, output_tokens=7, vocab=300)


def test_prompts_share_a_beginning_and_nothing_else() -> None:
    prompts = [body["prompt"] for body in draw_bodies(LOAD, "tiny", seed=1)]
    assert len(prompts) == 6
    assert {len(prompt) for prompt in prompts} == {40}
    assert len({tuple(prompt[:24]) for prompt in prompts}) == 1
    assert len({tuple(prompt[24:]) for prompt in prompts}) == 6


def test_ids_stay_within_the_vocabulary() -> None:
    load = LoadFlags(requests=50, vocab=16)
    drawn = {token for body in draw_bodies(load, "tiny", seed=1) for token in body["prompt"]}
    assert drawn == set(range(FIRST_ID, 16))


def test_a_seed_decides_the_prompts() -> None:
    one = draw_bodies(LOAD, "tiny", seed=1)
    assert one == draw_bodies(LOAD, "tiny", seed=1)
    assert one != draw_bodies(LOAD, "tiny", seed=2)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_every_body_asks_for_a_counted_stream_of_a_set_length(endpoint: str) -> None:
    load = LoadFlags(endpoint="chat" if endpoint == "chat" else "completions", output_tokens=7)
    for body in draw_bodies(load, "tiny", seed=1):
        assert body["model"] == "tiny"
        assert body["max_tokens"] == 7
        assert body["ignore_eos"] is True
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        json.dumps(body)


def test_a_chat_shares_its_system_prompt() -> None:
    load = LoadFlags(endpoint="chat", requests=4, prompt_tokens=40, shared_tokens=24)
    chats = [body["messages"] for body in draw_bodies(load, "tiny", seed=1)]
    assert {chat[0]["role"] for chat in chats} == {"system"}
    assert len({chat[0]["content"] for chat in chats}) == 1
    assert len({chat[1]["content"] for chat in chats}) == 4
    words = chats[0][0]["content"].split() + chats[0][1]["content"].split()
    assert len(words) == 40
    assert set(words) <= set(WORDS)


def test_a_chat_without_shared_words_has_no_system_prompt() -> None:
    load = LoadFlags(endpoint="chat", shared_tokens=0)
    assert [m["role"] for m in draw_bodies(load, "tiny", seed=1)[0]["messages"]] == ["user"]


@pytest.mark.parametrize(("shared", "fine"), [(40, True), (41, False)])
def test_no_more_is_shared_than_there_is(shared: int, fine: bool) -> None:
    load = LoadFlags(requests=2, prompt_tokens=40, shared_tokens=shared)
    if fine:
        first, second = draw_bodies(load, "tiny", seed=1)
        assert first == second
    else:
        with pytest.raises(BadSetting, match="--shared-tokens: 41 is more than"):
            draw_bodies(load, "tiny", seed=1)
