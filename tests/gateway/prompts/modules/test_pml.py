"""Schemas in PML are read like the same schemas in JSON."""

from __future__ import annotations

import tracemalloc
import xml.etree.ElementTree as ET
from collections.abc import Callable

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


def test_modules_within_modules_are_named_by_their_path() -> None:
    """Name nested modules by their path, as in the examples of the Prompt Cache paper's code."""
    read = schema_of_pml("""
<schema name="persona">
  <system>You are polite.</system>
  <user>
    Make a character.
    <module name="age"><union>
      <module name="child">Young.</module>
      <module name="senior">Old, with <parameter name="years" length="2"/> years.
        <union><module name="well">Well.</module><module name="ill">Ill.</module></union>
      </module>
    </union></module>
    <module name="home">A home <module name="city">in a city.</module></module>
  </user>
  <assistant>Ask me.</assistant>
</schema>""")
    check_schema(read)
    assert [one.text for one in read.modules[:2]] == [
        "You are polite.",
        "\n    Make a character.\n    ",
    ]
    age, of_age, of_senior, home, city, last = read.modules[2:]
    assert last.text == "Ask me."
    assert (age.name, age.pieces) == ("age", ())
    assert [one.name for one in of_age.alternatives] == ["age.child", "age.senior"]
    assert Parameter("years", 2) in of_age.alternatives[1].pieces
    assert [one.name for one in of_senior.alternatives] == ["age.senior.well", "age.senior.ill"]
    assert (home.name, home.pieces) == ("home", ("A home ",))
    assert (city.name, city.pieces) == ("home.city", ("in a city.",))


@pytest.mark.parametrize(("tag", "length"), [("param", "len"), ("parameter", "length")])
def test_a_parameter_may_have_a_scaffold(tag: str, length: str) -> None:
    parameter = f'<{tag} name="n" {length}="3" scaffold=" two "/>'
    read = schema_of_pml(f'<schema><module name="a">For {parameter}</module></schema>')
    check_schema(read)
    assert read.modules[0].parts == ("For ", Parameter("n", 3, " two "))


def test_a_scaffold_has_unions_and_modules_within_modules() -> None:
    read = schema_of_pml("""
<schema name="s"><scaffold>
  <module name="a">A <module name="in">in A.</module></module>
  <union><module name="b">B.</module><module name="c">C.</module></union>
</scaffold></schema>""")
    check_schema(read)
    assert read.scaffolds == (("a", "a.in", "b", "c"),)


@pytest.mark.parametrize("within", ["", '<param name="days" len="2"/>'])
def test_a_module_may_have_no_text(within: str) -> None:
    read = schema_of_pml(f'<schema name="s"><module name="a">{within}</module></schema>')
    check_schema(read)
    parts = (Parameter("days", 2),) if within else ()
    assert read.modules == (ModuleSpec(name="a", parts=parts),)


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
        ('<schema><module name="a"><module name="b">x</module> y</module></schema>', "own text"),
        ('<schema><module name="a"><schema name="b">x</schema></module></schema>', "<schema>"),
        ("<schema><tool>x</tool></schema>", "<tool>"),
        ("<schema><user><system>x</system></user></schema>", "<system>"),
        ("<schema>" + 9 * '<module name="a">' + "x" + 9 * "</module>" + "</schema>", "more than 8"),
        ("<schema><union><union></union></union></schema>", "<union>"),
        ('<schema><scaffold>x<module name="a">y</module></scaffold></schema>', "no text"),
        ('<schema><module name="a">x<parameter name="p" len="1"/></module></schema>', "`len`"),
        ('<schema><module name="a">x<param name="p"/></module></schema>', "a length"),
        ('<schema><module name="a">x<param name="p" len="0"/></module></schema>', ">= 1"),
        ('<schema><module name="a">x<param name="p" len="-1"/></module></schema>', "a length"),
        ('<schema><module name="a" scaffold="b">x</module></schema>', "`scaffold`"),
        ('<schema><module name="a" cache="false">x</module></schema>', "is cached"),
        ('<schema><module name="a" src="file">x</module></schema>', "in the schema"),
        ("<schema><union>text</union></schema>", "no text"),
        ("<schema><union></union></schema>", "length"),
        ("<schema></schema>", "length"),
        ('<?xml version="1.0" encoding="utf-16"?><schema></schema>', "length"),
        ('<schema xmlns="u">x</schema>', "`xmlns`"),
        ('<schema xmlns:a="u"><a:module name="a">x</a:module></schema>', "<a:module>"),
    ],
)
def test_what_is_no_schema_is_refused_and_says_why(text: str, said: str) -> None:
    with pytest.raises(BadRequest) as refused:
        schema_of_pml(text)
    assert said in refused.value.message
    assert refused.value.param == "pml"


def test_a_long_namespace_is_not_repeated_in_the_name_of_every_element() -> None:
    elements = "".join(f"<a:e{number}/>" for number in range(200))
    text = f'<schema xmlns:a="{"u" * 20_000}">{elements}</schema>'

    def refused() -> None:
        with pytest.raises(BadRequest, match="a:e0"):
            schema_of_pml(text)

    assert _peak(refused) < 10 * len(text)
    assert _peak(lambda: ET.fromstring(text)) > 100 * len(text), "the control"


def _peak(work: Callable[[], object]) -> int:
    """Return the peak number of bytes that `work` allocated."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
