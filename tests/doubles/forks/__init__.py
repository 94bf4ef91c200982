"""Processes that are forked, instead of executed, from a process that has imported their modules.

Importing takes most of the time of a test's process. Everything else is as if the program had been
executed: arguments, environment, descriptors, session, parent, signals and exit status.
"""
