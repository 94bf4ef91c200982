"""The calls of several families: arguments as plain text between tags.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Oslo
    </parameter>
    </function>
    </tool_call>

A family gives its tags (`Tags`). The grammars and the parser are made from them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gateway.turn_formats.calls import CallReader
from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.shapes.block_format import BlockFormat
from gateway.turn_formats.shapes.plain_values import plain_value
from gateway.turn_formats.shapes.schemas import properties_of, required_of, type_names
from gateway.turn_formats.shapes.tagged_reader import TaggedReader
from gateway.turn_formats.shapes.tags import Tags
from gateway.turn_formats.turn_format import ToolSpec

_ANY_NAME = r'/[^<>\n"]{1,64}/'


class TaggedFormat(BlockFormat):
    """The base of formats with tagged arguments. A subclass gives its name and `tags`."""

    name: ClassVar[str]
    tags: ClassVar[Tags]
    markers: ClassVar[tuple[str, ...]] = ()
    call_marks: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **more: Any) -> None:
        """Set, from the tags, the attributes that the grammars of blocks need."""
        super().__init_subclass__(**more)
        tags = cls.tags
        cls.markers, cls.call_marks, cls.trigger = tags.whole, tags.begins, tags.begins[0]
        cls.between_blocks = tags.line if tags.between is None else tags.between
        if tags.block:
            cls.opens = tags.line + tags.call
            cls.closes = tags.line + tags.block_end
            cls.between_calls = cls.opens if tags.holds_many else None

    def is_in(self, template: str) -> bool:
        tags = self.tags
        return all(tag in template for tag in (*tags.begins, tags.key, tags.line.join(tags.keyed)))

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        return TaggedReader(tools, self.tags, self.around_text(tools))

    def around_text(self, tools: Sequence[ToolSpec]) -> Sequence[str]:
        """List the markers in a turn that belong neither to text nor to calls."""
        del tools
        return ()

    def opening_after_text(self, grammar: GrammarText) -> str:
        """Write the grammar of any text up to a block, or up to a call without a block's tag."""
        outer = super().opening_after_text(grammar)
        return f"({outer} | {grammar.up_to(self.tags.call)})" if self.tags.block else outer

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        tags = self.tags
        head = grammar.spelled(tool.name + tags.named + tags.line)
        if tags.numbered:
            number = f"{grammar.spelled(tool.name + tags.numbered)} /[0-9]{{1,3}}/"
            head = f"{number} {grammar.spelled(tags.named + tags.line)}"
        return f"{head} {self._parameters(grammar, tool)} {grammar.spelled(self.tags.call_end)}"

    def written(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        tags = self.tags
        if tags.numbered:
            return None
        values = "".join(self._written(key, value) for key, value in arguments.items())
        return f"{name}{tags.named}{tags.line}{values}{tags.call_end}"

    def _written(self, key: str, value: Any) -> str:
        tags = self.tags
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        opens, closes = tags.quote if tags.quote and "<" in text else ("", "")
        opens = tags.value.type_tag(type_names(value)[0]) + opens
        return f"{tags.key}{key}{tags.key_end}{opens}{text}{closes}{tags.value.tail}"

    def _parameters(self, grammar: GrammarText, tool: ToolSpec) -> str:
        tags = self.tags
        properties = properties_of(tool)
        if properties is None:
            key, key_end = grammar.spelled(tags.key), grammar.spelled(tags.key_end)
            value = plain_value(grammar, tool, {}, tags.value)
            return grammar.rule("parameters", f"({key} {_ANY_NAME} {key_end} {value})*")
        required = required_of(tool)
        ways = []
        for name, schema in properties.items():
            head = grammar.spelled(tags.key + name + tags.key_end)
            value = plain_value(grammar, tool, schema, tags.value)
            ways.append(f"({head} {value}){'' if name in required else '?'}")
        return grammar.rule("parameters", " ".join(ways) or '""')
