"""Schemas in PML, read as the same schemas in JSON are."""

from __future__ import annotations

import pytest

from gateway.errors import BadRequest
from gateway.prompts.modules.pml import schema_of_pml
from gateway.prompts.modules.schema import ModuleSpec, Parameter, SchemaSpec, check_schema

TRAVEL = """
<schema name="travel">
  You plan journeys.
  <module name="plan">For <param name="days" len="4"/> days.</module>
  <union>
    <module name="miami">Sun &amp; sea.</module>
    <module name="maui">Waves.</module>
  </union>
  <scaffold><module name="fees">Fees.</module><module name="rules">Rules.</module></scaffold>
</schema>
"""


def test_a_schema_is_read_whole() -> None:
    read = schema_of_pml(TRAVEL)
    check_schema(read)
    assert read == SchemaSpec(
        name="travel",
        modules=(
            ModuleSpec(text="\n  You plan journeys.\n  "),
            ModuleSpec(name="plan", parts=("For ", Parameter("days", 4), " days.")),
            ModuleSpec(
                union=(
                    ModuleSpec(name="miami", parts=("Sun & sea.",)),
                    ModuleSpec(name="maui", parts=("Waves.",)),
                )
            ),
            ModuleSpec(name="fees", parts=("Fees.",)),
            ModuleSpec(name="rules", parts=("Rules.",)),
        ),
        scaffolds=(("fees", "rules"),),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no markup", "no XML"),
        ("<schema>", "no XML"),
        ("<prompt>x</prompt>", "<prompt>"),
        ("<!DOCTYPE schema><schema>x</schema>", "document type"),
        ('<schema version="2">x</schema>', "`version`"),
        ("<schema><module>x</module></schema>", "a name"),
        ('<schema><module name="a b">x</module></schema>', "regex"),
        ('<schema><module name="a"><module name="b">x</module></module></schema>', "<module>"),
        ('<schema><module name="a">x<param name="p"/></module></schema>', "a length"),
        ('<schema><module name="a">x<param name="p" len="0"/></module></schema>', ">= 1"),
        ('<schema><module name="a">x<param name="p" len="-1"/></module></schema>', "a length"),
        ("<schema><union>text</union></schema>", "no text"),
        ("<schema><union></union></schema>", "length"),
        ("<schema></schema>", "length"),
    ],
)
def test_what_is_no_schema_is_refused_and_says_why(text: str, said: str) -> None:
    with pytest.raises(BadRequest) as refused:
        schema_of_pml(text)
    assert said in refused.value.message
    assert refused.value.param == "pml"
