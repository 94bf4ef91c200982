"""The generated turns whose own tokens are put back into a chat's next prompt.

What a turn said is compared in `said.py`; the tokens that said it are remembered for a while by
tenant (`turn_memory.py`), found again in a chat (`verbatim.py`) and put where the template would
have written the turn anew (`tokens/splicing.py`).
"""
