"""llama.cpp's own example grammars compile, and accept only the texts that they should."""

from __future__ import annotations

import pytest

from engine.grammars.check import checked_over
from engine.grammars.compilation import Compilation, compiled
from engine.grammars.syntax.gbnf import rules_of
from engine.grammars.vocabulary import Vocabulary, read_vocabulary
from engine.link.messages import Grammar
from tests.doubles.grammars.recogniser import Recogniser
from tests.zoo.grammars.walks import walked
from tests.zoo.here import here
from tests.zoo.sources import LLAMA_CPP, QWEN2_5

pytestmark = pytest.mark.zoo
END = 151_645
EXAMPLES = ("arithmetic", "c", "chess", "english", "japanese", "json", "json_arr", "list")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return read_vocabulary(here(QWEN2_5) / "models", 151_936, (END,))


@pytest.mark.parametrize("name", EXAMPLES)
def test_walks_end_in_texts_of_the_grammar(name: str, vocabulary: Vocabulary) -> None:
    path = here(LLAMA_CPP) / "vendor" / "llama.cpp" / "grammars" / f"{name}.gbnf"
    gbnf = path.read_text(encoding="utf-8")
    found = checked_over(Grammar("gbnf", gbnf), vocabulary)
    assert not found.error
    compilation = Compilation(compiled(found.text, vocabulary))
    texts = [walked(compilation, vocabulary, END, seed) for seed in range(20)]
    right = Recogniser(rules_of(gbnf, lambda _: pytest.fail("there is no other grammar in it")))
    assert all(text in right for text in texts)
    assert not all(text + "\0" in right for text in texts)
