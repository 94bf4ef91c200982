"""The served architectures, one file for each family, their registry, and its reader of configs.

Families are ordered by what their layers have: `hybrids` have recurrent states, `mixtures` have
experts, and `dense` ones have neither.
"""
