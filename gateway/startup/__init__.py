"""The gateway's process from its start to its end: the parts that it opens, joins and closes.

`composition.py` takes the steps of a start in order. `serving_parts.py` and `kept_state.py` have
the steps. `first_start.py` creates the files that a fresh machine lacks.
"""
