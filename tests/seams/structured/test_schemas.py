"""For more than a hundred schemas, an answer is valid, or the error names the refused keyword."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.seams.structured.schemas import ALL, Schema
from tests.seams.structured.test_chats import ENDS, asked

CASES = {f"{kind}: {name}": one for kind, some in ALL.items() for name, one in some.items()}
# Otherwise a random model would write much white space.
BIAS = ENDS | {str(ord(" ")): -8, str(ord("\n")): -8}
# Numbers of refused schemas, by words in the error.
REFUSED = {
    "contains": 1,
    "uniqueItems": 1,
    "`if`": 1,
    "`not`": 1,
    "oneOf": 1,
    "dependentRequired": 1,
    "dependentSchemas": 1,
    "$dynamicRef": 1,
    "$ref leads": 2,  # `$ref` to another document, or to nothing
    "reference to a group": 1,
    "Unsatisfiable": 1,
}


def answer_under(client: openai.OpenAI, schema: Schema, seed: int) -> tuple[str, str]:
    """Return the answer, or the reason why there is none."""
    named = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    how = {"max_tokens": 1900, "seed": seed, "logit_bias": BIAS}
    try:
        answer = asked(client, response_format=named, **how)
    except openai.BadRequestError as error:
        return "", f"{error.param}: {error.message}"
    [choice] = answer.choices
    assert choice.finish_reason == "stop"
    return choice.message.content or "", ""


def problems(jsonschema: Any, schema: Schema, text: str) -> Iterator[str]:
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
    # The grammar allows a leap second in any minute, but the validator does not.
    value = json.loads(text.replace(":60", ":59"))
    return (error.message for error in validator.iter_errors(value))


@pytest.mark.timeout(600)
def test_each_schema_is_followed_or_refused_by_its_keyword(
    client: openai.OpenAI, jsonschema: Any
) -> None:
    assert len(CASES) > 110
    jobs = [(name, 1 + number % 2) for number, name in enumerate(CASES)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda job: answer_under(client, CASES[job[0]], job[1]), jobs))
    wrong, refused = {}, dict[str, str]()
    for (name, seed), (text, why) in zip(jobs, answers, strict=True):
        if why:
            refused[name] = why
        elif found := list(problems(jsonschema, CASES[name], text)):
            wrong[name, seed] = found
    assert not wrong
    assert all(why.startswith("response_format.json_schema.schema: ") for why in refused.values())
    named = {name: [word for word in REFUSED if word in why] for name, why in refused.items()}
    assert all(named.values()), refused
    assert Counter(words[0] for words in named.values()) == REFUSED
