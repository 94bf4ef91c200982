"""Answers as they are sent: whole or as a stream, within limits of memory."""
