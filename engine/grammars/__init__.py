"""The grammars of answers: checked in a separate process, compiled in threads, cached by flow."""
