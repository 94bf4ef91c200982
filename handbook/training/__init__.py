"""The making of the embedded model: text, training, evaluation.

For a checkout alone: what is installed has the weights, and not this.
"""
