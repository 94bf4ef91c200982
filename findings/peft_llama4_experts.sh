#!/bin/bash
# PEFT 0.21.2 with transformers 5.23.0: the expert tensors of Llama 4 and of gpt-oss have the same layout, (experts,
# inputs, outputs), but adapters of Llama 4 have lora_A and lora_B the other way round: lora_A has the layer's
# outputs, lora_B its inputs. PEFT asks the layer for `is_transposed`, which Llama 4's layer lacks, so PEFT assumes
# the layout of Qwen3's experts, (experts, outputs, inputs). The products that PEFT adds to the weights are right,
# but a server that takes lora_A for the inputs' side, as in other adapters, cannot read the file.
# Needs no GPU and no checkpoint. Fails once this behaviour changes.
set -e
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check peft==0.21.2 transformers==5.23.0 torch==2.13.0
cat > "$place/shapes.py" <<'PYTHON'
import sys
import warnings

from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

warnings.simplefilter("ignore")
logging.set_verbosity_error()
HIDDEN, INNER, EXPERTS, RANK = 32, 24, 4, 2
SIZES = dict(
    vocab_size=64, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, head_dim=16, num_experts_per_tok=1,
)
KINDS = {
    "llama4_text": dict(num_local_experts=EXPERTS, intermediate_size_mlp=INNER),
    "gpt_oss": dict(num_local_experts=EXPERTS),
    "qwen3_moe": dict(num_experts=EXPERTS, moe_intermediate_size=INNER),
}


def shapes(kind):
    """The shapes of the tensor of gate and up, and of its adapter's A and B."""
    config = AutoConfig.for_model(kind, **SIZES, **KINDS[kind])
    model = AutoModelForCausalLM.from_config(config)
    [weight] = [tensor for name, tensor in model.named_parameters() if name.endswith("gate_up_proj")]
    adapted = get_peft_model(model, LoraConfig(r=RANK, target_parameters=["experts.gate_up_proj"]))
    found = {name.split(".")[-3]: tuple(one.shape) for name, one in adapted.named_parameters() if "lora_" in name}
    return tuple(weight.shape), found["lora_A"], found["lora_B"]


IN_OUT, ALL, OUTPUTS = (EXPERTS, HIDDEN, 2 * INNER), EXPERTS * RANK, 2 * INNER
expected = {
    "llama4_text": (IN_OUT, (ALL, OUTPUTS), (HIDDEN, ALL)),
    "gpt_oss": (IN_OUT, (ALL, HIDDEN), (OUTPUTS, ALL)),
    "qwen3_moe": ((EXPERTS, OUTPUTS, HIDDEN), (ALL, HIDDEN), (OUTPUTS, ALL)),
}
found = {kind: shapes(kind) for kind in KINDS}
for kind, (weight, a, b) in found.items():
    print(kind, "gate_up_proj", weight, "lora_A", a, "lora_B", b)
sys.exit(found != expected)
PYTHON
"$place/venv/bin/python" "$place/shapes.py"
