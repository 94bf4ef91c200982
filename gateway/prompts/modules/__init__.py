"""Prompt modules: named texts at fixed positions, whose KV is computed once and reused in any
prompt.

A module schema lists prompt modules; a request names a schema and some of its modules, and adds its
own text. A module's KV is computed after the schema's beginning, and without the other texts around
the module, so that the KV can be reused with any other modules. The result is an approximation, so
a request must name its modules, as in Prompt Cache (Gim et al. 2023).
"""
