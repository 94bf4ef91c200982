"""Every causal model of `transformers` is served, or refused with the names of its unsupported
features.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from engine.models.served.registry import SERVED
from engine.models.served.unserved import UNSERVED, missing_for


def test_each_architecture_is_served_or_in_one_list() -> None:
    unserved = Counter(chain(*UNSERVED.values()))
    assert max(unserved.values()) == 1
    assert not SERVED.architectures.keys() & unserved.keys()
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    assert known - SERVED.architectures.keys() == unserved.keys()


def test_what_is_missing_is_said() -> None:
    assert missing_for("LongcatFlashForCausalLM") == "latent attention"
    assert missing_for("LlamaForCausalLM") is None
