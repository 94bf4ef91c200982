"""Prompt modules: named texts at fixed positions, whose KV is computed once for all prompts.

A module schema lists prompt modules. A request names a schema and some of its modules, and adds its
own text. A module's KV is computed after the schema's beginning, without the other modules. Any
prompt with this module can then reuse the KV. The result is an approximation, as in Prompt Cache
(Gim et al. 2023), so a request must name its modules.
"""
