"""The tags with which a family writes calls."""

from msgspec import Struct

from gateway.turn_formats.shapes.plain_values import ValueTags


class Tags(Struct, frozen=True):
    """The tags of a call, in their order, and the text between them."""

    call: str
    named: str  # text after the tool's name; "": another tag or whitespace follows
    key: str
    keyed: tuple[str, ...]
    value_end: str
    call_end: str
    block: str = ""  # tag before a block of calls; "": calls are in no block
    block_end: str = ""
    holds_many: bool = False
    line: str = "\n"
    pad: str = ""
    numbered: str = ""  # text between the tool's name and a number, before `named`
    between: str | None = None  # text between calls if each call is a block; None: `line`
    typed: tuple[tuple[str, str], ...] = ()
    quote: tuple[str, str] | None = None
    tokens: tuple[str, ...] = ()

    @property
    def key_end(self) -> str:
        """All text from a parameter's name to its value, or to the tag with the value's type."""
        return self.line.join(self.keyed) + self.pad

    @property
    def value(self) -> ValueTags:
        """The tags around a value."""
        return ValueTags(self.pad + self.value_end + self.line, self.typed, self.quote)

    @property
    def begins(self) -> tuple[str, ...]:
        """The tags that begin calls."""
        return (self.block, self.call) if self.block else (self.call,)

    @property
    def ends(self) -> tuple[str, ...]:
        """The tags that end calls."""
        return (self.call_end, self.block_end) if self.block else (self.call_end,)

    @property
    def whole(self) -> tuple[str, ...]:
        """The tags that may be single tokens of the model."""
        tags = (*self.begins, self.named, self.key, *self.keyed, self.value_end, *self.ends)
        whole = (tag for tag in tags if tag[:1] + tag[-1:] == "<>")
        return tuple(dict.fromkeys((*self.tokens, *whole)))
