"""The served architectures and weight formats by name, and the reader of configs that name them.

`registry.py` has an entry for each architecture (`architectures`) and format (`weight_formats`).
"""
