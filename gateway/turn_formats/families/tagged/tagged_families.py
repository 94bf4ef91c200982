"""Families whose calls have tagged arguments: a table of their tags.

Qwen3-Coder, Qwen3.5 and Seed-OSS write the following form. Some models leave `<tool_call>` out, and
Seed-OSS leaves out the line ends around values:

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Oslo
    </parameter>
    </function>
    </tool_call>

GLM 4.5 to 4.7, Hy3 and others write the following form. GLM 4.7 writes it on one line. Hy3 has
other tags, and a tag around all calls:

    <tool_call>get_weather
    <arg_key>city</arg_key>
    <arg_value>Oslo</arg_value>
    </tool_call>

MiniMax-M2, DeepSeek V3.2 and V4, and MiniCPM5 write the following form. DeepSeek writes `DSML`
between bars before each tag's name. After an argument's name it writes whether the argument is a
text, as `string="true"`. MiniCPM5 names the tags `function` and `param`, and writes no block and no
line ends. It puts a text with `<` into CDATA:

    <minimax:tool_call>
    <invoke name="get_weather">
    <parameter name="city">Oslo</parameter>
    </invoke>
    </minimax:tool_call>
"""

from msgspec.structs import replace

from gateway.turn_formats.shapes.tagged import TaggedFormat
from gateway.turn_formats.shapes.tags import Tags


class Qwen3CoderFormat(TaggedFormat):
    """The `ToolFormat` of Qwen3-Coder and Qwen3.5."""

    name = "qwen3_coder"
    tags = Tags(
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

    name = "seed_oss"
    tags = replace(
        Qwen3CoderFormat.tags, block="<seed:tool_call>", block_end="</seed:tool_call>", pad=""
    )


class Glm45Format(TaggedFormat):
    """The `ToolFormat` of GLM 4.5 and 4.6, Ling 3 and Laguna."""

    name = "glm45"
    tags = Tags(
        call="<tool_call>",
        named="",
        key="<arg_key>",
        keyed=("</arg_key>", "<arg_value>"),
        value_end="</arg_value>",
        call_end="</tool_call>",
    )


class Glm47Format(TaggedFormat):
    """The `ToolFormat` of GLM 4.7 and Spark 2.5."""

    name = "glm47"
    tags = replace(Glm45Format.tags, line="")


class Hy3Format(TaggedFormat):
    """The `ToolFormat` of Hy3."""

    name = "hy3"
    tags = Tags(
        block="<tool_calls:opensource>",
        call="<tool_call:opensource>",
        named="<tool_sep:opensource>",
        key="<arg_key:opensource>",
        keyed=("</arg_key:opensource>", "<arg_value:opensource>"),
        value_end="</arg_value:opensource>",
        call_end="</tool_call:opensource>",
        block_end="</tool_calls:opensource>",
        holds_many=True,
    )


class MiniMaxM2Format(TaggedFormat):
    """The `ToolFormat` of MiniMax-M2."""

    name = "minimax_m2"
    tags = Tags(
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


_DSML = "\uff5cDSML\uff5c"  # between full-width bars


class DeepSeekV4Format(TaggedFormat):
    """The `ToolFormat` of DeepSeek V4."""

    name = "deepseek_v4"
    tags = Tags(
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

    name = "deepseek_v32"
    tags = replace(
        DeepSeekV4Format.tags,
        block=f"<{_DSML}function_calls>",
        block_end=f"</{_DSML}function_calls>",
    )


class MiniCpm5Format(TaggedFormat):
    """The `ToolFormat` of MiniCPM5."""

    name = "minicpm5"
    tags = Tags(
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
