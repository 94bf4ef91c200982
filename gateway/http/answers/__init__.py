"""Answers as they are sent: whole or as a stream, within bounds of memory."""
