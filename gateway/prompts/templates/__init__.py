"""The model's chat template: its running, its traits, and checks of its output.

Published templates differ in what they take: one message of the system, turns that alternate, one
call a turn. `compiled.py` runs a template within bounds; `probing.py` finds its traits by rendering
small chats, once; `fitting.py` fits a chat to them; `shapes.py` tells whether a rendered chat has
every message, once and in order; `limits.py` says in words what a template does not take.
"""
