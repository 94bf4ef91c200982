"""The making of the embedded model: its text, its training, its evaluation.

For a checkout alone: what is installed has the weights, and not this.
"""
