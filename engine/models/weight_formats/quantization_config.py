"""The field `quantization_config` of config.json, and the fields of compressed-tensors.

If the value of a field is not served, the error names the field.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from engine.models.errors import BadConfig, UnsupportedModel
from engine.models.weight_formats.ignored import Ignored, matches, read_ignored

FIELD = "quantization_config"
HEAD = "lm_head"  # name of the output projection; some checkpoints put a prefix before it
T = TypeVar("T")


def refuse_unless(served: bool, field: str, value: object, instead: object) -> None:
    """Raise UnsupportedModel if not `served`. The message names the field."""
    if not served:
        raise UnsupportedModel(f"{FIELD}.{field} {value!r}: served is {instead}")


def converted(quantization: dict[str, Any], kind: type[T]) -> T:
    """Convert the fields to a `kind`. Raises BadConfig."""
    try:
        return msgspec.convert(quantization, kind)
    except msgspec.ValidationError as error:
        raise BadConfig(f"{FIELD}: {error}") from error


class Numbers(msgspec.Struct):
    """The quantisation of weights or of inputs, in compressed-tensors."""

    num_bits: int
    type: str
    strategy: str
    symmetric: bool = True
    dynamic: bool | str = False
    group_size: int | None = None
    block_structure: list[int] | None = None
    actorder: str | bool | None = None


class ConfigGroup(msgspec.Struct):
    """A group of matrices with the same quantisation, in compressed-tensors."""

    targets: list[str]
    weights: Numbers
    input_activations: Numbers | None = None
    output_activations: dict[str, Any] | None = None
    format: str | None = None


class CompressedTensors(msgspec.Struct):
    """The fields of `quant_method` compressed-tensors."""

    quant_method: str
    config_groups: dict[str, ConfigGroup]
    format: str
    ignore: list[str] = []
    sparsity_config: dict[str, Any] | None = None
    transform_config: dict[str, Any] | None = None  # rotations of the input, which are not served

    @property
    def ignored(self) -> Ignored:
        """The matrices that stay unquantised. Raises BadConfig."""
        return read_ignored("ignore", self.ignore)

    def the_group(self, served_format: str) -> ConfigGroup:
        """Return the only group. It must have all `Linear` modules except the output head.

        Raises UnsupportedModel.
        """
        refuse_unless(self.format == served_format, "format", self.format, served_format)
        if (self.sparsity_config or {}).get("format", "dense") != "dense":
            raise UnsupportedModel(f"{FIELD}.sparsity_config: served are dense weights")
        groups = self.config_groups
        refuse_unless(len(groups) == 1, "config_groups", list(groups), "one")
        group = next(iter(groups.values()))
        refuse_unless(group.targets == ["Linear"], "targets", group.targets, ["Linear"])
        transforms = [name for name, said in (self.transform_config or {}).items() if said]
        refuse_unless(not transforms, "transform_config", transforms, "none")
        outputs = group.output_activations
        refuse_unless(outputs is None, "output_activations", outputs, "null, plain outputs")
        names = self.ignored.names
        plain_head = any(matches(name, HEAD) or name.endswith(f".{HEAD}") for name in names)
        served = f"a list with {HEAD!r}, an output projection that is plain"
        refuse_unless(plain_head, "ignore", self.ignore, served)
        return group
