"""The model's own tokens of its turns, which come back into the next prompt.

What a turn said is compared in `said.py`; the tokens that said it are remembered for a while by
tenant (`turn_memory.py`), found again in a chat (`verbatim.py`) and put where the template would
have written the turn anew (`tokens/splicing.py`).
"""
