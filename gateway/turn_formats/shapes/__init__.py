"""The shapes of calls that families share: grammars and readers made from a family's markers."""
