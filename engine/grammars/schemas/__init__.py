"""JSON schemas as the library can follow them, without a change of what they allow.

`followable.py` walks a schema, `keywords.py` says which keywords bind something, `unions.py` which
alternatives exclude each other, and `names.py` makes names of properties follow a schema.
"""
