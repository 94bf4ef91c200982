"""The code that made the embedded model: text, training, evaluation.

Only a checkout has this package. An installation has only the weights.
"""
