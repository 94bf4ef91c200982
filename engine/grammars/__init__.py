"""The grammars that constrain answers. They are checked, compiled, and cached by flow."""
