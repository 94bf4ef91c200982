#!/usr/bin/env bash
# transformers 5.24.0: if a model's directory has tokenizer.model and no tokenizer.json, transformers
# splits runs of blanks into other tokens than sentencepiece does, and save_pretrained writes a
# tokenizer that does the same.
#
# The pieces of several blanks have the worst score of all (-1e9 in Llama's and Mistral's models), so
# sentencepiece merges blanks last. transformers merges blanks first, as if a piece's place in the
# vocabulary were its rank. Indented code and JSON get tokens that the model never saw in training;
# words with single blanks between them get the right tokens.
# Seen for "x    y": sentencepiece has a piece of three blanks, and a piece of one blank and the y;
# transformers has a piece of four blanks, and the y alone. Mistral 7B's published tokenizer.json splits
# as sentencepiece does.
# Needs python3 with pip, and 0.4 GB in a temporary directory. The exit status is 0 while this is so.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check transformers==5.24.0 sentencepiece==0.2.3 \
    protobuf==7.36.2
env/bin/pip download --quiet --disable-pip-version-check --no-deps mistral-common==1.13.1
env/bin/python - <<'PYTHON'
import json
import zipfile
from pathlib import Path

import sentencepiece
import transformers

with zipfile.ZipFile(next(Path().glob("mistral_common-*.whl"))) as wheel:
    Path("tokenizer.model").write_bytes(wheel.read("mistral_common/data/tokenizer.model.v1"))
names = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}
Path("tokenizer_config.json").write_text(json.dumps(names))
theirs = transformers.AutoTokenizer.from_pretrained(".")
meant = sentencepiece.SentencePieceProcessor(model_file="tokenizer.model")
alike = {}
for text in ("x y z", "x    y", '{\n  "a": 1}'):
    pieces = [meant.id_to_piece(one) for one in meant.encode(text)]
    made = theirs.convert_ids_to_tokens(theirs.encode(text, add_special_tokens=False))
    alike[text] = pieces == made
    print(f"{text!r}: sentencepiece {pieces}, transformers {made}")
assert [*alike.values()] == [True, False, False]
PYTHON
