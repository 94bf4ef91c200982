import json
from typing import Any

import pytest

from cli.errors import BadSetting
from cli.load.options import LoadFlags
from cli.load.phases import SPECIAL_IDS
from cli.load.requests.dataset import RequestSize
from cli.load.requests.prompts import WORDS, draw_bodies
from cli.load.sender import Body

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
    assert drawn == set(range(SPECIAL_IDS, 16))


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


def test_extra_fields_are_added_and_take_the_place_of_others() -> None:
    load = LoadFlags(endpoint="chat", extra_body='{"tools": [], "ignore_eos": false}')
    plain = draw_bodies(LoadFlags(endpoint="chat"), "tiny", seed=1)
    assert draw_bodies(load, "tiny", seed=1) == [
        {**body, "tools": [], "ignore_eos": False} for body in plain
    ]


@pytest.mark.parametrize("text", ["{", "[]", "null", "3"])
def test_extra_fields_are_an_object(text: str) -> None:
    with pytest.raises(BadSetting, match="--extra-body: is no JSON object"):
        draw_bodies(LoadFlags(extra_body=text), "tiny", seed=1)


@pytest.mark.parametrize(("shared", "fine"), [(40, True), (41, False)])
def test_no_more_is_shared_than_there_is(shared: int, fine: bool) -> None:
    load = LoadFlags(requests=2, prompt_tokens=40, shared_tokens=shared)
    if fine:
        first, second = draw_bodies(load, "tiny", seed=1)
        assert first == second
    else:
        with pytest.raises(BadSetting, match="--shared-tokens: 41 is more than"):
            draw_bodies(load, "tiny", seed=1)


def test_half_of_a_prompt_is_shared_by_default() -> None:
    first, second = draw_bodies(LoadFlags(requests=2, prompt_tokens=41), "tiny", seed=1)
    assert first["prompt"][:20] == second["prompt"][:20]
    assert first["prompt"][20] != second["prompt"][20], "with this seed"


def test_sizes_take_the_place_of_the_flags() -> None:
    sizes = [RequestSize(5, 2), RequestSize(300, 9)]
    first, second = draw_bodies(LOAD, "tiny", 1, sizes)
    assert (len(first["prompt"]), first["max_tokens"]) == (5, 2)
    assert (len(second["prompt"]), second["max_tokens"]) == (300, 9)
    assert first["prompt"] != second["prompt"][:5]


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_equal_blocks_of_a_trace_are_equal_content(endpoint: str) -> None:
    load = LoadFlags(endpoint="chat" if endpoint == "chat" else "completions", vocab=300)
    sizes = [
        RequestSize(25, 1, blocks=(7, 8, 9), block_size=10),
        RequestSize(30, 1, blocks=(7, 8, 5), block_size=10),
    ]

    def tokens(body: Body) -> list[Any]:
        if "prompt" in body:
            return list(body["prompt"])
        return " ".join(message["content"] for message in body["messages"]).split()

    first, second = (tokens(body) for body in draw_bodies(load, "tiny", 1, sizes))
    assert (len(first), len(second)) == (25, 30)
    assert first[:20] == second[:20]
    assert first[20:] != second[20:25]
