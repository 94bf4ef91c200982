"""Modules have the same positions in every prompt. All that decides their bits is in the key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.link.codec import unpack_token_ids
from gateway.errors import BadRequest
from gateway.processes.fair_executor import Steps, at_once
from gateway.prompts.modules.joined import JoinedPrompt, modules_before
from gateway.prompts.modules.layout import PlacedSchema, placed_schema
from gateway.prompts.modules.schema import ModuleSpec, Parameter, SchemaSpec
from gateway.prompts.modules.selection import ModulesOption, ModuleUse, select
from gateway.prompts.tokens.tokenizer import TokenIds
from prefix_cache.namespace import Namespace

SIZE = 4
HEAD = np.array([7, 8, 9], np.int32)
OWN = np.array([1, 2], np.int32)


def encode(text: str, most: int) -> Steps[TokenIds | None]:
    """Return one token for each character."""
    yield
    return None if len(text) > most else np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def named(digest: str) -> Namespace:
    return Namespace(digest[:16].encode())


SCHEMA = SchemaSpec(
    modules=(
        ModuleSpec(text="always"),
        ModuleSpec(union=(ModuleSpec(name="a", text="aaaa"), ModuleSpec(name="b", text="bbbbbbb"))),
        ModuleSpec(name="p", parts=("xx", Parameter("n", 3), "yy")),
        ModuleSpec(name="z", text="zzz"),
    ),
    scaffolds=(("p", "z"),),
)
TEXTLESS = SchemaSpec(
    modules=(
        ModuleSpec(name="outer", parts=()),
        ModuleSpec(name="p", parts=(Parameter("n", 3),)),
        ModuleSpec(name="z", text="zzz"),
    )
)


def prompt(
    *use: str | ModuleUse, schema: SchemaSpec = SCHEMA, head: TokenIds = HEAD
) -> JoinedPrompt:
    selection = at_once(select(placed(schema), ModulesOption("id", use), encode))
    return modules_before(head, selection, named, SIZE).joined(OWN)


def placed(schema: SchemaSpec, most: int = 100) -> PlacedSchema:
    return at_once(placed_schema(schema, encode, most))


def test_modules_have_the_same_positions_whichever_others_there_are() -> None:
    made = prompt("a", ModuleUse("p", {"n": "12"}))
    head, a, p = made.modules
    assert unpack_token_ids(head.token_ids).tolist() == [7, 8, 9, *b"always", 0, 0, 0]
    assert unpack_token_ids(head.positions)[:9].tolist() == [*range(9)]
    assert unpack_token_ids(a.token_ids).tolist() == [*b"saaaa", 0, 0, 0]
    assert unpack_token_ids(a.positions)[:5].tolist() == [8, 9, 10, 11, 12]
    assert unpack_token_ids(p.positions)[:5].tolist() == [8, 16, 17, 21, 22]
    assert [one.num_tokens for one in made.modules] == [9, 5, 5]
    assert [one.own_tokens for one in made.modules] == [9, 4, 4]
    assert [one.head_tokens for one in made.modules] == [None, 1, 1]
    copied = b"s" + b"aaaa" + b"xxyy"
    assert made.token_ids.tolist() == [*copied, *b"12", 1, 2]
    assert made.positions.tolist() == [*range(8, 13), 16, 17, 21, 22, 18, 19, 23, 24]
    assert (made.num_tokens, made.reach) == (3 + 6 + 4 + 4 + 2 + 2, 25)
    alone = prompt(ModuleUse("p", {"n": "34"}))
    assert alone.modules == (head, p), "the same keys and tokens"
    assert alone.namespace != made.namespace


def test_a_head_of_whole_blocks_is_copied_into_no_module() -> None:
    made = prompt("b", head=np.array([7, 8], np.int32))
    head, b = made.modules
    assert (head.num_tokens, b.head_tokens, b.num_tokens) == (8, 0, 7)
    assert made.token_ids.tolist() == [*b"bbb", 1, 2]
    assert (b.whole, b.copied) == ((range(4),), (4, 5, 6))


def test_a_parameters_scaffold_is_in_its_module_and_in_no_prompt() -> None:
    parts = ("123456", Parameter("n", 9, "........"), "abcdefg")
    schema = SchemaSpec(modules=(ModuleSpec(name="p", parts=parts),))
    made = prompt(ModuleUse("p", {"n": "=="}), schema=schema, head=HEAD[:2])
    head, p = made.modules
    assert unpack_token_ids(p.token_ids)[:23].tolist() == [7, 8, *b"123456........abcdefg"]
    assert unpack_token_ids(p.positions)[:23].tolist() == [*range(16), *range(17, 24)]
    assert (p.scaffolds, p.own_tokens, p.unread_tokens) == (((8, 16),), 13, 8 + 1)
    assert p.whole == (range(4, 8), range(16, 20))
    assert made.token_ids.tolist() == [7, 8, *b"12", *b"efg", *b"==", 1, 2]
    assert made.positions.tolist() == [0, 1, 2, 3, 21, 22, 23, 8, 9, 24, 25]
    assert made.num_tokens == 2 + 13 + 2 + 2
    [without] = placed(schema).modules
    assert (without.num_tokens, without.length) == (13, 22)
    bare = ModuleSpec(name="p", parts=("123456", Parameter("n", 9), "abcdefg"))
    other = prompt("p", schema=SchemaSpec(modules=(bare,)), head=HEAD[:2])
    assert (other.modules[1].scaffolds, other.modules[0].token_ids) == ((), head.token_ids)
    assert other.modules[1].namespace != p.namespace


def test_scaffolds_in_modules_that_attend_to_each_other() -> None:
    modules = tuple(
        ModuleSpec(name=name, parts=(Parameter("n", 2, "."), text, Parameter("m", 2, "..")))
        for name, text in (("a", "aa"), ("b", "b"))
    )
    made = prompt("a", "b", schema=SchemaSpec(modules=modules, scaffolds=(("a", "b"),)))
    run = made.modules[1]
    assert unpack_token_ids(run.token_ids)[: run.num_tokens].tolist() == [7, 8, 9, *b".aa...b.."]
    assert run.scaffolds == ((3, 4), (6, 9), (10, 12))
    assert made.token_ids.tolist() == [7, 8, 9, *b"aab", 1, 2]
    alone = prompt(
        "a", schema=SchemaSpec(modules=(ModuleSpec(name="a", parts=(Parameter("n", 2, "."),)),))
    )
    assert len(alone.modules) == 1, "a module of only a scaffold has nothing to attend to"


def test_a_scaffold_fits_in_its_parameter() -> None:
    def schema(length: int) -> SchemaSpec:
        parts = ("x", Parameter("n", length, "..."))
        return SchemaSpec(modules=(ModuleSpec(name="p", parts=parts),))

    with pytest.raises(BadRequest, match="scaffold of `n` has more than 2 tokens") as refused:
        placed(schema(2))
    assert refused.value.param == "modules"
    assert placed(schema(3)).length == 4


def test_without_text_before_a_named_module_there_is_no_head() -> None:
    made = prompt("a", schema=SchemaSpec(modules=SCHEMA.modules[1:]), head=HEAD[:0])
    assert [one.head_tokens for one in made.modules] == [None]
    made = prompt("a", "z", schema=SchemaSpec(modules=SCHEMA.modules[1:]), head=HEAD)
    assert [one.head_tokens for one in made.modules] == [None, 3, 3]


def test_a_scaffold_is_one_run_where_all_of_it_is_named() -> None:
    together = prompt("p", "z")
    assert [one.own_tokens for one in together.modules] == [9, 7]
    apart = prompt("p"), prompt("z")
    assert {one.namespace for one in together.modules[1:]}.isdisjoint(
        one.namespace for made in apart for one in made.modules[1:]
    )


def test_a_scaffold_with_a_union_is_one_run_with_any_of_its_modules() -> None:
    schema = SchemaSpec(modules=SCHEMA.modules, scaffolds=(("a", "b", "z"),))
    assert [one.own_tokens for one in prompt("a", "z", schema=schema).modules] == [9, 7]
    assert [one.own_tokens for one in prompt("b", "z", schema=schema).modules] == [9, 10]
    with_other = SchemaSpec(modules=SCHEMA.modules, scaffolds=(("a", "z"),))
    apart = prompt("b", "z", schema=with_other)
    assert [one.own_tokens for one in apart.modules] == [9, 7, 3], "b is not of the scaffold"


def test_a_module_without_text_has_positions_and_no_blocks() -> None:
    made = prompt("outer", ModuleUse("p", {"n": "12"}), "z", schema=TEXTLESS)
    assert [one.own_tokens for one in made.modules] == [3, 3]
    assert made.token_ids.tolist()[-4:] == [*b"12", 1, 2]
    assert made.positions.tolist()[-4:] == [3, 4, 9, 10]
    alone = prompt("outer", "p", schema=TEXTLESS)
    assert [one.own_tokens for one in alone.modules] == [3], "the head"
    assert prompt("p", schema=TEXTLESS, head=HEAD[:0]).modules == ()
    selection = at_once(select(placed(TEXTLESS), ModulesOption("id", ("outer", "p")), encode))
    assert (selection.used, selection.runs) == (("outer", "p"), ())


def test_whatever_decides_the_bits_is_in_the_key() -> None:
    first = prompt("a")
    assert prompt("a").modules == first.modules, "the control"
    other_schema = SchemaSpec(modules=(*SCHEMA.modules, ModuleSpec(name="more", text="more")))
    heads = np.array([7, 8], np.int32), np.array([7, 7, 9], np.int32)
    for other in (prompt("a", schema=other_schema), *(prompt("a", head=one) for one in heads)):
        ours = {one.namespace for one in first.modules}
        assert ours.isdisjoint(one.namespace for one in other.modules)
    values = [prompt(ModuleUse("p", {"n": "1"})), prompt("p")]
    assert values[0].modules == values[1].modules, "a value belongs to the request"
    assert values[0].namespace != values[1].namespace


@pytest.mark.parametrize(
    ("use", "code", "words"),
    [
        (("a", "b"), "invalid_value", "`a` and `b` are of one union"),
        (("a", "a"), "invalid_value", "`a` is used twice"),
        (("c",), "unknown_module", "no module `c`"),
        ((ModuleUse("p", {"m": "1"}),), "unknown_parameter", "no such parameter"),
        ((ModuleUse("p", {"n": "1234"}),), "parameter_too_long", "`n` has more tokens"),
    ],
)
def test_what_the_schema_has_not_is_refused(use: tuple[Any, ...], code: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as refused:
        prompt(*use)
    assert refused.value.code == code
    assert (refused.value.param or "").startswith("ratoon.modules.use")
