"""The tensor names of a model checkpoint: which the decoder uses, and which it ignores.

In checkpoints of vision models, the decoder's names have a prefix, and there are tensors of a
vision encoder. Other checkpoints have draft heads, scales of an fp8 cache, or tables that follow
from the config. These tensors are not needed for text, so they are not loaded. Any other unknown
tensor is an error, and the engine does not start.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

# Prefixes of tensors that do not belong to the decoder: vision, audio, and draft heads.
SURPLUS_PREFIXES = (
    "visual.",
    "model.visual.",
    "vision_tower.",
    "model.vision_tower.",
    "model.audio_tower.",
    "multi_modal_projector.",
    "model.multi_modal_projector.",
    "model.vision_embedder.",
    "model.embed_vision.",
    "model.embed_audio.",
    "mtp.",
)
# Suffixes of unused tensors: scales of fp8 KV, and frequencies that follow from the config.
SURPLUS_SUFFIXES = (".q_scale", ".k_scale", ".v_scale", ".kv_scale", ".rotary_emb.inv_freq")
# For a tensor of all experts: the matrices of each expert that it joins by rows.
_MATRICES: Mapping[str, tuple[str, ...]] = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "down_proj": ("down_proj",),
}
_STACKED = re.compile(r"(.*\.experts\.)(gate_up_proj|down_proj)(?:\.(weight\w*))?")
# Pairs of (prefix in files without output head, such as an embedding model's; usual prefix).
WITHOUT_HEAD = (
    ("embed_tokens.", "model.embed_tokens."),
    ("layers.", "model.layers."),
    ("norm.", "model.norm."),
)
_OWN_KV = (".self_attn.k_proj.", ".self_attn.v_proj.", ".self_attn.k_norm.")
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class CheckpointNames:
    """The rules that map a checkpoint's tensor names to the decoder's, or mark them as unused."""

    # Pairs of (prefix in the files, decoder's prefix). The first that matches is used.
    prefixes: tuple[tuple[str, str], ...] = WITHOUT_HEAD
    # Pairs of (ending in the files, decoder's ending).
    endings: tuple[tuple[str, str], ...] = ()
    surplus: tuple[str, ...] = SURPLUS_PREFIXES
    # The indices of draft heads' layers, after the last layer (`num_nextn_predict_layers`).
    drafting_layers: range = range(0)
    # The indices of layers that read another layer's KV. The files may have KV projections for
    # them, which are unused.
    sharing_layers: range = range(0)
    # The matrices that are joined in the files: pairs of (a part of the joined name, what replaces
    # it in the name of each matrix).
    merged: tuple[tuple[str, tuple[str, ...]], ...] = ()
    # The number E of experts if the files may have one tensor for all experts of a layer, or 0.
    # Such tensors are (E, 2 I, H) and (E, H, I), with scales (E, 2 I, 1) and (E, H, 1) in fp8.
    stacked_experts: int = 0

    def own(self, name: str) -> str:
        """Return the decoder's name for a tensor, given its name in the files."""
        for prefix, instead in self.prefixes:
            if name.startswith(prefix):
                name = instead + name.removeprefix(prefix)
                break
        for ending, instead in self.endings:
            if name.endswith(ending):
                return name.removesuffix(ending) + instead
        return name

    def parts(self, own: str) -> tuple[str, ...]:
        """Return the decoder's names of the matrices that tensor `own` joins by rows, if any."""
        for part, instead in self.merged:
            if part in own:
                return tuple(own.replace(part, one) for one in instead)
        return self.experts(own)

    def experts(self, own: str) -> tuple[str, ...]:
        """Return the names of the experts' matrices that the tensor `own` stacks, if any."""
        if not self.stacked_experts or (found := _STACKED.fullmatch(own)) is None:
            return ()
        prefix, joined, suffix = found.groups("weight")
        return tuple(
            f"{prefix}{expert}.{matrix}.{suffix}"
            for expert in range(self.stacked_experts)
            for matrix in _MATRICES[joined]
        )

    def surplus_kind(self, own: str) -> str | None:
        """Return the kind of unused tensor to which `own` belongs, or None if `own` is used.

        The kind is a pattern of names, such as `model.vision_tower.*`.
        """
        for prefix in self.surplus:
            if own.startswith(prefix):
                return f"{prefix}*"
        for suffix in SURPLUS_SUFFIXES:
            if own.endswith(suffix):
                return f"*{suffix}"
        layer = _LAYER.match(own)
        if layer is not None and int(layer[1]) in self.drafting_layers:
            return f"{layer[0]}*"
        if layer is not None and int(layer[1]) in self.sharing_layers:
            found = next((part for part in _OWN_KV if part in own), None)
            return None if found is None else f"*{found}*"
        return None


PLAIN_NAMES = CheckpointNames()


class Surplus:
    """The unused tensors of the files, counted by kind."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._counts: Counter[str] = Counter()

    def add(self, kind: str, num_bytes: int) -> None:
        """Count one more tensor."""
        self._counts[kind] += 1
        self.num_bytes += num_bytes

    def __str__(self) -> str:
        """Return the number, kinds and bytes of unused tensors as text, or "" if there are none."""
        if not self._counts:
            return ""
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self._counts.items()))
        return (
            f"left {self._counts.total()} tensors in the files, {self.num_bytes / 1e6:,.1f} MB, "
            f"which text does not need: {kinds}"
        )
