"""The generated turns, whose tokens are put back into a chat's next prompt.

`said.py` compares the contents of turns. A turn's tokens are remembered for a while, by tenant
(`turn_memory.py`), found again in a chat (`verbatim.py`), and put where the template would have
written the turn anew (`tokens/splicing.py`).
"""
