"""The known content blocks that Ratoon does not support and refuses by name.

No served model sees pictures or reads files. A summary that another server encrypted cannot be
read.
"""

from msgspec import Struct


class ForeignBlock(Struct, frozen=True, tag_field="type"):
    """The base of unsupported blocks. Their fields are not read."""


class ImageBlock(ForeignBlock, frozen=True, tag="image"):
    """A block with a picture."""


class DocumentBlock(ForeignBlock, frozen=True, tag="document"):
    """A block with a file, or with a text to be cited."""


class SearchResultBlock(ForeignBlock, frozen=True, tag="search_result"):
    """A search result to be cited."""


class CompactionBlock(ForeignBlock, frozen=True, tag="compaction"):
    """A summary that replaces all earlier turns."""


Foreign = ImageBlock | DocumentBlock | SearchResultBlock | CompactionBlock
