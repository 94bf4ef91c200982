"""The served architectures, one file for each family.

Families are ordered by what their layers have: `hybrids` have recurrent states, `mixtures` have
experts, and `dense` ones have neither.

Elsewhere: their registry and the reader of configs (`served`).
"""
