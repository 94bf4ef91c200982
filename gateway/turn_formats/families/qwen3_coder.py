"""Qwen3-Coder, Qwen3.5 and Seed-OSS: `<function=...>` with a `<parameter=...>` for each argument.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Oslo
    </parameter>
    </function>
    </tool_call>

Some models leave `<tool_call>` out. Seed-OSS writes no lines around values.
"""

from typing import ClassVar

from msgspec.structs import replace

from gateway.turn_formats.families.tagged import TaggedFormat, Tags


class Qwen3CoderFormat(TaggedFormat):
    """The `ToolFormat` of Qwen3-Coder and Qwen3.5."""

    name: ClassVar[str] = "qwen3_coder"
    tags: ClassVar[Tags] = Tags(
        block="<tool_call>",
        call="<function=",
        named=">",
        key="<parameter=",
        keyed=(">",),
        value_end="</parameter>",
        call_end="</function>",
        block_end="</tool_call>",
        pad="\n",
    )


class SeedOssFormat(TaggedFormat):
    """The `ToolFormat` of Seed-OSS."""

    name: ClassVar[str] = "seed_oss"
    tags: ClassVar[Tags] = replace(
        Qwen3CoderFormat.tags, block="<seed:tool_call>", block_end="</seed:tool_call>", pad=""
    )
