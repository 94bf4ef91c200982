"""The shapes in which families write calls: grammars and readers made of a family's marks."""
