"""MiniMax-M2: `invoke` with a `parameter` for each argument, in a block.

<minimax:tool_call>
<invoke name="get_weather">
<parameter name="city">Oslo</parameter>
</invoke>
</minimax:tool_call>
"""

from __future__ import annotations

from typing import ClassVar

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
