"""The client APIs (dialects), a folder each; `startup/composition.py` lists the served ones.

A dialect reads bodies, makes a `GenerationRequest` of each, and renders the events of its answer.
Dialects know nothing of each other; the code that they share is here.
"""
