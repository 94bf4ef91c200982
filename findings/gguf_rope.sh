#!/usr/bin/env bash
# transformers 5.23.0 reads a Llama's GGUF file without its rope scaling, and without a warning.
#
# llama.cpp's converter writes Llama 3.1's scaling as the tensor rope_freqs.weight, which has a divisor
# for the frequency of each pair. from_pretrained(..., gguf_file=...) ignores this tensor, and the config
# has rope_type "default". Here two files that differ only in this tensor (all ones; all eights) give the
# same logits.
# Seen: rope_type default, largest difference 0.0, while dividing the frequencies by 8 in transformers
# itself changes a logit by more than 0.1.
# Needs python3 with pip, and 2 GB in a temporary directory (6 with torch for CUDA). The exit status is 0
# while this is so.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check transformers==5.23.0 gguf==0.19.0 \
    accelerate==1.15.0 torch==2.13.0
env/bin/python - <<'PYTHON'
import gguf
import numpy as np
import torch
import transformers

ROWS, WIDE, VOCABULARY = 64, 128, 300
draw = np.random.default_rng(1)
one = "blk.0."
shapes = {"token_embd": (VOCABULARY, ROWS), "output": (VOCABULARY, ROWS)}
shapes |= {one + name: (ROWS, ROWS) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
shapes |= {one + "ffn_gate": (WIDE, ROWS), one + "ffn_up": (WIDE, ROWS), one + "ffn_down": (ROWS, WIDE)}
weights = {name: draw.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}
norms = (one + "attn_norm", one + "ffn_norm", "output_norm")
weights |= {name: np.ones(ROWS, np.float32) for name in norms}


def model(divisor: float) -> transformers.PreTrainedModel:
    writer = gguf.GGUFWriter(f"{divisor}.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(ROWS)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(VOCABULARY)
    for name, numbers in weights.items():
        writer.add_tensor(f"{name}.weight", numbers)
    writer.add_tensor("rope_freqs.weight", np.full(8, divisor, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return transformers.AutoModelForCausalLM.from_pretrained(
        ".", gguf_file=f"{divisor}.gguf", dtype=torch.float32
    )


plain, scaled = model(1.0), model(8.0)
asked = torch.arange(200)[None]
with torch.no_grad():
    logits = plain(asked).logits
    difference = (scaled(asked).logits - logits).abs().max().item()
    plain.model.rotary_emb.inv_freq /= 8
    meant = (plain(asked).logits - logits).abs().max().item()
kind = scaled.config.rope_parameters["rope_type"]
print(f"transformers {transformers.__version__}: rope_type {kind}, difference {difference}, meant {meant:.2f}")
assert (kind, difference) == ("default", 0.0)
assert meant > 0.1
PYTHON
