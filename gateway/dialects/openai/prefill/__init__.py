"""The routes that compute prompts and generate nothing; answers come from a prompt's last token.

`/v1/embeddings` reads the token's hidden state, `/v1/rerank` the logits of "yes" and "no" after a
document, `/v1/decisions` the logits of the answers that a question allows.
"""
