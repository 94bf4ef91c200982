#!/bin/bash
# transformers 5.23.0, DeepSeek V2 and V3 and GLM-4.7-Flash (`glm4_moe_lite`): the norms of latents in
# multi-head latent attention (`q_a_layernorm`, `kv_a_layernorm`) have an epsilon of 1e-6, whatever
# `rms_norm_eps` says. All other norms of these models follow `rms_norm_eps`. So a server that uses the
# config's value for all norms gives other answers. Needs no GPU and no checkpoint. Fails once this
# behaviour changes.
set -e
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 torch==2.13.0
cat > "$place/norms.py" <<'PYTHON'
import sys

from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

logging.set_verbosity_error()
SIZES = dict(
    vocab_size=64, hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=2, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=8,
    qk_rope_head_dim=8, v_head_dim=8, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
)


def epsilons(kind):
    """The epsilon of each norm of a model whose config says 0.25."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES, rms_norm_eps=0.25))
    return {
        name.split(".", 2)[-1]: module.variance_epsilon
        for name, module in model.named_modules()
        if hasattr(module, "variance_epsilon")
    }


as_expected = True
for kind in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite"):
    found = epsilons(kind)
    inner = {eps for name, eps in found.items() if "_a_layernorm" in name}
    outer = {eps for name, eps in found.items() if "_a_layernorm" not in name}
    print(kind, "latents", inner, "others", outer)
    as_expected &= inner == {1e-6} and outer == {0.25}
sys.exit(not as_expected)
PYTHON
"$place/venv/bin/python" "$place/norms.py"
