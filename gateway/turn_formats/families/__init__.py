"""The formats, one file for each family of models; what only some of them share stands beside.

Qwen2.5 and Qwen3 are in `hermes.py`, gpt-oss in `harmony.py`; `choose.py`, above, knows all.
"""
