"""Processes that are forked from one that has imported their modules, instead of executed.

Importing is most of what a process of a test costs. All else is as it was executed: its arguments,
environment, descriptors, session, parent, signals and exit status.
"""
