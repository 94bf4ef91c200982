"""The client APIs (dialects), a folder each.

A dialect reads bodies, makes a `GenerationRequest` of each, and renders its answer. Dialects do not
import each other. The files here are common to several dialects. `startup/composition.py` lists the
dialects that are served.
"""
