#!/bin/bash
# transformers 5.23.0: a config writes into the dictionary of `rope_parameters` that its caller passes.
# Mistral4Config writes the share of rotated dimensions there. A second Mistral4Config made from the same dictionary
# keeps the first one's share although its sizes give another, so its rotary table has the wrong width.
# DeepseekV3Config, also made from one dictionary twice, writes no such share. Needs no torch and no checkpoint.
# Fails once this behaviour changes.
set -e
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0
cat > "$place/configs.py" <<'PYTHON'
import sys

from transformers import DeepseekV3Config, Mistral4Config

GIVEN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
SHARE = "partial_rotary_factor"


def shares(kind):
    """The share of two configs from one dictionary, 16 of 40 and 16 of 32 dimensions, and of one alone."""
    given = dict(GIVEN)
    found = [
        kind(qk_rope_head_dim=16, qk_nope_head_dim=plain, rope_parameters=rope).rope_parameters.get(SHARE)
        for plain, rope in ((24, given), (16, given), (16, dict(GIVEN)))
    ]
    return found, SHARE in given


mistral, was_written = shares(Mistral4Config)
other, _ = shares(DeepseekV3Config)
print("Mistral4Config", mistral, "written into the argument:", was_written)
print("DeepseekV3Config", other)
sys.exit(not (mistral == [0.4, 0.4, 0.5] and was_written and other == [None, None, None]))
PYTHON
"$place/venv/bin/python" "$place/configs.py"
