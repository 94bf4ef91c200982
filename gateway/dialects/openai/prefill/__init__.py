"""The routes that compute prompts and generate nothing: their answers are read off the last token.

embeddings   the hidden state of the last token
"""
