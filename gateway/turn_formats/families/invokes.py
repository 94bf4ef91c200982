"""MiniMax-M2, DeepSeek V3.2 and V4, MiniCPM5: tags that name a tool and each argument.

    <minimax:tool_call>
    <invoke name="get_weather">
    <parameter name="city">Oslo</parameter>
    </invoke>
    </minimax:tool_call>

DeepSeek writes `DSML` and its bars before each tag's name, and after the argument's name whether it
is a text, `string="true"`. MiniCPM5 writes `function` and `param`, without block and lines, and
`<` only in CDATA.
"""

from typing import ClassVar

from msgspec.structs import replace

from gateway.turn_formats.families.tagged import TaggedFormat, Tags


class MiniMaxM2Format(TaggedFormat):
    """The `ToolFormat` of MiniMax-M2."""

    name: ClassVar[str] = "minimax_m2"
    tags: ClassVar[Tags] = Tags(
        block="<minimax:tool_call>",
        call='<invoke name="',
        named='">',
        key='<parameter name="',
        keyed=('">',),
        value_end="</parameter>",
        call_end="</invoke>",
        block_end="</minimax:tool_call>",
        holds_many=True,
    )


_DSML = "\uff5cDSML\uff5c"  # with full-width bars


class DeepSeekV4Format(TaggedFormat):
    """The `ToolFormat` of DeepSeek V4."""

    name: ClassVar[str] = "deepseek_v4"
    tags: ClassVar[Tags] = Tags(
        tokens=(_DSML,),
        block=f"<{_DSML}tool_calls>",
        call=f'<{_DSML}invoke name="',
        named='">',
        key=f'<{_DSML}parameter name="',
        keyed=('" string="',),
        typed=(("string", 'true">'), ("", 'false">')),
        value_end=f"</{_DSML}parameter>",
        call_end=f"</{_DSML}invoke>",
        block_end=f"</{_DSML}tool_calls>",
        holds_many=True,
    )


class DeepSeekV32Format(TaggedFormat):
    """The `ToolFormat` of DeepSeek V3.2."""

    name: ClassVar[str] = "deepseek_v32"
    tags: ClassVar[Tags] = replace(
        DeepSeekV4Format.tags,
        block=f"<{_DSML}function_calls>",
        block_end=f"</{_DSML}function_calls>",
    )


class MiniCpm5Format(TaggedFormat):
    """The `ToolFormat` of MiniCPM5."""

    name: ClassVar[str] = "minicpm5"
    tags: ClassVar[Tags] = Tags(
        call='<function name="',
        named='">',
        key='<param name="',
        keyed=('">',),
        value_end="</param>",
        call_end="</function>",
        line="",
        between="\n",
        quote=("<![CDATA[", "]]>"),
    )
