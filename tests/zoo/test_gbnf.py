"""llama.cpp's own example grammars complete, and what they let through is theirs."""

from __future__ import annotations

import random

import numpy as np
import pytest

from engine.grammars.check import checked_over
from engine.grammars.compilation import Compilation, compiled
from engine.grammars.syntax.gbnf import rules_of
from engine.grammars.token_mask import GrammarConstraint
from engine.grammars.vocabulary import Vocabulary, read_vocabulary
from engine.link.messages import Grammar
from tests.doubles.recogniser import Recogniser
from tests.zoo.here import here
from tests.zoo.sources import LLAMA_CPP, QWEN2_5

pytestmark = pytest.mark.zoo
END = 151_645
NUM_AT_RANDOM, MOST = 12, 2000  # tokens of a walk
CLOSE, GO_ON = ';)}]"\n', ' 1a({<=*/."'
EXAMPLES = ("arithmetic", "c", "chess", "english", "japanese", "json", "json_arr", "list")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return read_vocabulary(here(QWEN2_5) / "models", 151_936, (END,))


def walked(compilation: Compilation, vocabulary: Vocabulary, seed: int) -> str:
    """A text of the grammar: some tokens at random, then such as bring it to its end."""
    chance, constraint, said = random.Random(seed), GrammarConstraint(compilation), list[int]()
    while not constraint.is_over and len(said) < MOST:
        bits = np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little")
        assert constraint.error is None
        if bits[END] and (len(said) >= NUM_AT_RANDOM or chance.random() < 0.1):
            break
        bits[END] = 0
        allowed = np.flatnonzero(bits)
        if len(said) >= NUM_AT_RANDOM:
            letters = CLOSE if chance.random() < 0.7 else GO_ON
            few = [one for (one,) in map(vocabulary.tokens.tokenize_str, letters) if bits[one]]
            allowed = np.array(few) if few else allowed
        said.append(int(chance.choice(allowed)))
        constraint.advance(said[-1])
    assert len(said) < MOST, vocabulary.tokens.decode_str(said)
    return vocabulary.tokens.decode_bytes(said).decode()


@pytest.mark.parametrize("name", EXAMPLES)
def test_walks_end_in_texts_of_the_grammar(name: str, vocabulary: Vocabulary) -> None:
    path = here(LLAMA_CPP) / "vendor" / "llama.cpp" / "grammars" / f"{name}.gbnf"
    gbnf = path.read_text(encoding="utf-8")
    found = checked_over(Grammar("gbnf", gbnf), vocabulary)
    assert not found.error
    compilation = Compilation(compiled(found.text, vocabulary))
    texts = [walked(compilation, vocabulary, seed) for seed in range(20)]
    right = Recogniser(rules_of(gbnf, lambda _: pytest.fail("there is no other grammar in it")))
    assert all(text in right for text in texts)
    assert not all(text + "\0" in right for text in texts)
