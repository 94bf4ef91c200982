"""The chat template of a model: its run, the messages it takes, and what it made of them.

Published templates differ in what they take: one message of the system, turns that alternate, one
call a turn. `compiled.py` runs a template within bounds; `probing.py` finds its traits by rendering
small chats, once; `fitting.py` fits a chat to them; `shapes.py` tells whether a rendered chat has
every message, once and in order; `limits.py` says in words what a template does not take.
"""
