#!/bin/bash
# transformers 5.23.0 applies Mamba-2's `time_step_limit` to prompts, but not to a single token with a cache
# (`mamba2_selective_state_update` does not get the limit). So the last of N + 1 tokens has other logits if it is
# computed alone, with the first N in the cache, than in one pass. Needs no GPU and no checkpoint. Fails once this
# behaviour changes.
set -e
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 torch==2.13.0
cat > "$place/steps.py" <<'PYTHON'
import sys

import torch
from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM
from transformers.utils import logging

logging.set_verbosity_error()


def difference(limit):
    """The largest between logits of the last of 33 tokens: in one pass, and by itself with a cache."""
    torch.manual_seed(0)
    config = GraniteMoeHybridConfig(
        vocab_size=300, hidden_size=64, shared_intermediate_size=80, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=0, mamba_n_heads=8,
        mamba_d_state=16, layer_types=["linear_attention", "full_attention"],
        attention_multiplier=0.25, time_step_limit=limit,
    )
    model = GraniteMoeHybridForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 1.5 * parameter.shape[-1] ** -0.5)
    ids = torch.randint(0, 300, (1, 33))
    with torch.inference_mode():
        whole = model(ids, use_cache=False).logits[0, -1]
        cache = model(ids[:, :-1], use_cache=True).past_key_values
        alone = model(ids[:, -1:], past_key_values=cache, use_cache=True).logits[0, -1]
    return (whole - alone).abs().max().item()


free, limited = difference((0.0, float("inf"))), difference((0.0, 0.1))
print(f"without a limit {free:.1e}, with one of 0.1 {limited:.3f}")
sys.exit(not (free < 1e-4 and limited > 0.01))
PYTHON
"$place/venv/bin/python" "$place/steps.py"
