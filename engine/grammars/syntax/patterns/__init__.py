"""The ECMA 262 patterns as trees of expressions, without anchors and look-aheads."""
