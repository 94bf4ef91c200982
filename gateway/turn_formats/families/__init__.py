"""The formats of families of models, over the shapes that some of them share (`shapes`).

Qwen2.5 and Qwen3 are in `hermes.py`, gpt-oss in `harmony.py`; `choose.py`, above, knows all.
"""
