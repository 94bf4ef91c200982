"""The generated turns, whose tokens are put back into a chat's next prompt.

`turn_memory.py` remembers a turn's tokens for a while, by tenant. `said.py` compares the contents
of turns. `verbatim.py` finds a turn in a chat. `tokens/splicing.py` puts the tokens where the
template would have written the turn anew.
"""
