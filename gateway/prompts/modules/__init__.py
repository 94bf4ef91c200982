"""Prompt modules: named texts at fixed positions, whose KV is computed alone and reused anywhere.

A schema lists modules; a request names a schema, some of its modules, and its own text. A module's
KV is computed without the texts around it, so that it can be reused anywhere. That is an
approximation, which a request asks for by name, as in Prompt Cache (Gim et al. 2023).
"""
