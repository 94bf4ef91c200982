"""The conversion of clients' JSON schemas to equivalent schemas that llguidance can follow."""
