"""The formats of families of models; `shapes` has the forms that several families share.

Qwen2.5 and Qwen3 are in `hermes.py`, gpt-oss in `harmony.py`; `choose.py` lists all formats.
"""
