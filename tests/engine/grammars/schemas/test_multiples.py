"""A schema's `multipleOf` may take so many states and no more; usual ones are followed."""

from __future__ import annotations

from typing import Any

import pytest

from engine.grammars.schemas.followable import followable
from engine.grammars.schemas.multiples import MAX_REMAINDERS, remainders
from engine.grammars.syntax.expression import UnsoundGrammar


def number(multiple: Any) -> dict[str, Any]:
    return {"type": "number", "multipleOf": multiple}


def fields(*multiples: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"f{i}": number(m) for i, m in enumerate(multiples)}}


@pytest.mark.parametrize(
    ("value", "states"),
    [(5, 5), (0.01, 1), (2.5, 25), (0.25, 25), (1e3, 1000), (12.0, 12), (True, 0), ("5", 0)],
)
def test_a_number_has_a_state_for_each_remainder(value: Any, states: int) -> None:
    assert remainders(value) == states


@pytest.mark.parametrize(
    "schema",
    [
        number(MAX_REMAINDERS),
        fields(0.01, 0.05, 100, 1000, 15, 12),
        {"allOf": [number(100), number(60)]},
    ],
)
def test_usual_ones_are_followed(schema: Any) -> None:
    assert followable(schema)


@pytest.mark.parametrize(
    "schema",
    [
        number(MAX_REMAINDERS + 1),
        number((MAX_REMAINDERS + 1) / 1000),
        fields(*range(9000, 9003)),
        {"allOf": [number(997), number(991)]},
        {"anyOf": [number(991)], "multipleOf": 997},
        {"$ref": "#/$defs/a", "multipleOf": 997, "$defs": {"a": number(991)}},
    ],
)
def test_more_are_refused_by_name(schema: Any) -> None:
    with pytest.raises(UnsoundGrammar, match="`multipleOf` has more than"):
        followable(schema)
