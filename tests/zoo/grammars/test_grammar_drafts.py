"""Masks after draft tokens equal those of one token at a time, with published tokenizers."""

from __future__ import annotations

import json
import random

import pytest

from engine.grammars.compilation import Compilation, compiled
from engine.grammars.prepared import prepared
from engine.grammars.token_mask import GrammarConstraint
from engine.grammars.vocabulary import Vocabulary, read_vocabulary
from engine.link.messages import Grammar
from tests.engine.grammars.test_drafts import SAID, one_by_one, tokens
from tests.zoo.families import TOKENIZERS
from tests.zoo.grammars.walks import walked

pytestmark = pytest.mark.zoo
PLACES = {
    "type": "object",
    "properties": {
        "name_of_the_place": {"type": "string", "maxLength": 20},
        "country_of_the_place": {"enum": ["Austria", "Australia", "Denmark"]},
        "postal_codes": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["name_of_the_place", "country_of_the_place"],
    "additionalProperties": False,
}
COMPACT = PLACES | {"x-guidance": {"whitespace_flexible": False}}


@pytest.fixture(scope="module", params=TOKENIZERS)
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    directory = TOKENIZERS[request.param].directory
    file = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    added = [one["id"] for one in file["added_tokens"]]
    size = max([*file["model"]["vocab"].values(), *added]) + 1
    return read_vocabulary(directory, size, (max(added),))


@pytest.mark.parametrize("schema", [PLACES, COMPACT], ids=["spaced", "compact"])
def test_any_drafts_have_the_masks_of_one_token_at_a_time(
    vocabulary: Vocabulary, schema: dict[str, object]
) -> None:
    grammar = compiled(prepared(Grammar("json_schema", json.dumps(schema))), vocabulary)
    compilation, rng = Compilation(grammar), random.Random(0)
    [end] = vocabulary.eos_token_ids
    said = vocabulary.tokens.tokenize_str(walked(compilation, vocabulary, end, seed=1))
    drafted, plain = (GrammarConstraint(compilation, ahead_s=60.0) for _ in range(2))
    num_forced = 0
    for place, token in enumerate(said):
        drafts = said[place : place + rng.randint(0, 5)]
        if drafts and rng.random() < 0.3:
            drafts[-1] = rng.randrange(vocabulary.num_logits)
        forced = list(drafted.forced())
        ahead = GrammarConstraint(compilation)
        for before in said[:place]:
            ahead.advance(before)
        masks = drafted.allowed_after(tuple(drafts))
        assert [tokens(mask) for mask in masks] == one_by_one(ahead, drafts)
        ahead = GrammarConstraint(compilation)
        for before in said[:place]:
            ahead.advance(before)
        assert one_by_one(ahead, forced)[: len(forced)] == [[one] for one in forced]
        assert tokens(plain.allowed()) == tokens(masks[0])
        num_forced += len(forced)
        for one in (drafted, plain):
            one.advance(token)
            assert one.error is None
    assert (num_forced > 3) is vocabulary.tokens.is_canonical


def test_the_library_takes_no_tokens_back_for_us() -> None:
    """Roll the library's matcher back (positive control): its mask is wrong.

    The library caches a mask for a lexer state that another text shares, though its next tokens
    differ.
    """
    qwen = TOKENIZERS["qwen3"].directory
    vocabulary = read_vocabulary(qwen, 151_936, (151_645,))
    kind, text, _ = SAID[2]
    compilation = Compilation(compiled(prepared(Grammar(kind, text)), vocabulary))
    [a], [b], [xy], [xz] = map(vocabulary.tokens.tokenize_str, ("a", "b", "xy", "xz"))
    assert compilation.grammar is not None
    matcher = compilation.grammar.matcher.deep_copy()
    matcher.consume_token(a)
    matcher.compute_bitmask()
    matcher.rollback(1)
    matcher.consume_token(b)
    words = matcher.compute_bitmask()
    assert words[xy // 8] >> xy % 8 & 1, "once this fails, taking back may be used"
    constraint = GrammarConstraint(compilation, ahead_s=60.0)
    assert xy in tokens(constraint.allowed_after((a,))[1])
    constraint.advance(b)
    assert xz in tokens(constraint.allowed())
    assert xy not in tokens(constraint.allowed())
