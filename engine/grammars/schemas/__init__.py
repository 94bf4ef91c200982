"""JSON schemas that the library can follow, equivalent to the client's schemas.

`followable.py` walks a schema, `keywords.py` knows which keywords have an effect, `unions.py` which
alternatives exclude each other, and `names.py` makes names of properties follow a schema.
"""
