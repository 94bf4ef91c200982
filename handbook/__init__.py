"""The embedded demo model: the text it is trained on, the training, the evaluation, the weights."""
