"""The text that the embedded model learned from, generated, and how often it answers right.

For a checkout alone: what is installed has the weights, and not this. The training has left: the
model's card says where it was.
"""
