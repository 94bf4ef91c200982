"""The formats of families of models, by how a call is written. `choose.py` lists all formats.

    objects   {"name": "get_weather", "arguments": {"city": "Oslo"}}     Qwen3 is in `hermes.py`
    named     get_weather, then its arguments in a form of their own     gpt-oss is in `harmony.py`
    tagged    get_weather, then a tag around each argument               most are in one table

`shapes` has the forms that several families share.
"""
