"""Blocks that are known and not supported, so that they are refused by name.

No model here sees pictures or reads files, and what only another server can read is not held here.
"""

from __future__ import annotations

from msgspec import Struct


class ForeignBlock(Struct, frozen=True, tag_field="type"):
    """The base of all of them. What is in one is not looked at."""


class ImageBlock(ForeignBlock, frozen=True, tag="image"):
    """A picture."""


class DocumentBlock(ForeignBlock, frozen=True, tag="document"):
    """A file, or a text that is to be cited."""


class SearchResultBlock(ForeignBlock, frozen=True, tag="search_result"):
    """The result of a search, to be cited."""


class CompactionBlock(ForeignBlock, frozen=True, tag="compaction"):
    """A summary in place of all that came before."""


Foreign = ImageBlock | DocumentBlock | SearchResultBlock | CompactionBlock
