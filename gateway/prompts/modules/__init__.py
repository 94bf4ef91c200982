"""Prompt modules: named texts at fixed positions, whose KV is computed alone and reused anywhere.

A schema lists modules; a request names a schema, some of its modules, and its own text. A module's
KV is computed without the texts around the module, so that the KV can be reused anywhere. The
result is an approximation, so a request must name its modules, as in Prompt Cache (Gim et al.
2023).
"""
