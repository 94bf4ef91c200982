"""The model's chat template: how it runs, its traits, and checks of its output.

Published templates refuse different chats. Some take only one system message, only turns that
alternate, or only one call a turn. `compiled.py` runs a template within limits. `probing.py` finds
its traits once, by rendering small chats. `fitting.py` fits a chat to the traits. `shapes.py`
checks that a rendered chat has every message exactly once, in order. `limits.py` says in words
which chats a template does not take.
"""
