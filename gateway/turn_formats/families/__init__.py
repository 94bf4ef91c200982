"""The formats of families of models.

Qwen2.5 and Qwen3 are in `hermes.py`, and gpt-oss is in `harmony.py`. `choose.py` lists all formats.
`shapes` has the forms that several families share.
"""
