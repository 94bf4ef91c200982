"""Processes that are forked from a process with their modules imported, instead of executed.

Importing takes most of the time of a test's process. Everything else is as if the program had been
executed: arguments, environment, descriptors, session, parent, signals and exit status.
"""
