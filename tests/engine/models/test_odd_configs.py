"""Published configs with one changed field are always served, or refused with one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from engine.models.checks import check_served
from engine.models.errors import ModelNotServed
from tests.engine.models.test_published import SERVED, written
from tests.examples import examples

ODD: tuple[Any, ...] = (None, 0, -1, 3, 1.5, True, "", "re:(", [], [1], ["a"], [None], {}, {"a": 1})


def places(config: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every field of a config, including those of nested configs."""
    for name, value in config.items() if isinstance(config, dict) else ():
        yield (*above, name)
        yield from places(value, (*above, name))


def with_other(config: dict[str, Any], place: tuple[str, ...], value: object) -> dict[str, Any]:
    first, *rest = place
    inner = with_other(config[first], tuple(rest), value) if rest else value
    return {**config, first: inner}


def answer(model_dir: Path) -> str:
    """Return the model's family, or the line that refuses it; raise other errors."""
    try:
        return check_served(model_dir, has_weights=False).family
    except ModelNotServed as error:
        return str(error)


@examples(4, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_a_field_says_the_answer_is_a_model_or_a_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    config = {**data.draw(st.sampled_from([config for config, _ in SERVED.values()]))}
    if "num_hidden_layers" in config:
        config["num_hidden_layers"] = 2
    place = data.draw(st.sampled_from(list(places(config))))
    odd = with_other(config, place, data.draw(st.sampled_from(ODD)))
    model_dir = written(tmp_path_factory.getbasetemp(), odd)
    assert "\n" not in answer(model_dir)
