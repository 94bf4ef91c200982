"""The formats, one file for each family of models, and the code that some of them share.

Qwen2.5 and Qwen3 are in `hermes.py`, gpt-oss in `harmony.py`; `choose.py`, above, knows all.
"""
