#!/usr/bin/env bash
# transformers 5.24.0 tokenises text with runs of blanks otherwise than sentencepiece if a model's
# directory has tokenizer.model and no tokenizer.json, and save_pretrained keeps that.
#
# The pieces for several blanks have the worst score of all (-1e9 in Llama's and Mistral's models), so
# sentencepiece merges blanks last. transformers puts these merges first, as if the place of a piece
# in the vocabulary were its rank. Indented code and JSON get tokens that the model never saw in
# training; words with single blanks are the same.
# Seen, in "x    y": sentencepiece has a piece of three blanks and one of a blank and the y;
# transformers one of four blanks, and the y. Mistral 7B's published tokenizer.json does as
# sentencepiece does.
# Needs python3 with pip, and 0.4 GB in a temporary directory. Exit status 0 while it is so.
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
