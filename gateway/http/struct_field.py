"""A field of a pydantic model that msgspec reads, so that a stored Struct is defined once.

Elsewhere: how models are read from bodies (`gateway/http/admin_json.py`).
"""

from typing import Any

import msgspec
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

# type of the pydantic errors that carry msgspec's errors; their context has the text in `found`
IN_A_STRUCT = "struct"


class StructField:
    """An annotation that reads and describes a field as `kind`, a type of msgspec."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def __get_pydantic_core_schema__(self, _: Any, __: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(self, _: Any, __: Any) -> dict[str, Any]:
        # `openapi.py` describes the field, since pydantic refers only to its own definitions
        return {}

    def _read(self, value: Any) -> Any:
        try:
            return self._decoder.decode(msgspec.json.encode(value))
        except msgspec.ValidationError as error:
            raise PydanticCustomError(IN_A_STRUCT, "{found}", {"found": str(error)}) from None
