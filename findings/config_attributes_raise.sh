#!/bin/bash
# transformers 5.24.0 (also 5.19.0, which SGLang 0.5.23 pins): in a Gemma 4 text config the heads of global layers
# may differ from those of sliding layers. For such a config `hasattr(config, "num_key_value_heads")` raises instead
# of answering, and `getattr(config, "head_dim", None)` raises instead of returning the default. The error is a
# RuntimeError, not an AttributeError. `to_dict()` still has both numbers. If all layers are alike, both calls answer.
# So code that probes a config by hasattr, as SGLang 0.5.23 does when it reads one, cannot start the published
# 26B-A4B. Needs no GPU, no torch and no checkpoint. Fails once this behaviour changes.
set -e
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0
cat > "$place/probe.py" <<'PYTHON'
from transformers import AutoConfig, __version__

SIZES = dict(
    num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], hidden_size=32, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8,
)


def probed(**differing):
    """What hasattr and getattr with a default do with a config, and whether its dict has the numbers."""
    config = AutoConfig.for_model("gemma4_text", **SIZES, **differing)
    seen = []
    for probe in (
        lambda: hasattr(config, "num_key_value_heads"),
        lambda: getattr(config, "head_dim", None),
        lambda: hasattr(config, "no_such_field"),
    ):
        try:
            seen.append(probe())
        except RuntimeError as error:
            seen.append(f"{type(error).__name__}, an AttributeError: {isinstance(error, AttributeError)}")
    written = config.to_dict()
    return [*seen, (written["num_key_value_heads"], written["head_dim"])]


print(f"transformers {__version__}")
alike = probed(global_head_dim=8, num_global_key_value_heads=2)
other = probed(global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True)
print("layers alike:   ", alike)
print("layers differ:  ", other)
raised = "AmbiguousGlobalPerLayerAttributeError, an AttributeError: False"
assert alike == [True, 8, False, (2, 8)], "a config of equal layers answers otherwise now"
assert other == [raised, raised, False, (2, 8)], "a config of differing layers answers otherwise now"
PYTHON
"$place/venv/bin/python" "$place/probe.py" 2>/dev/null
