"""Prompt modules: named texts at fixed positions, whose KV is computed alone and reused anywhere.

A schema says which there are; a request names a schema, some of its modules, and its own text. So
the KV of a module depends on nothing that stands around it, and what it would have read there is
left out: an approximation, which a request asks for by name. As in Prompt Cache (Gim et al. 2023).
"""
