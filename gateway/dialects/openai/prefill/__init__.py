"""The routes that compute prompts and generate nothing; answers come from a prompt's last token.

`/v1/embeddings` reads the last token's hidden state, `/v1/rerank` its logits of "yes" and "no"
after a document, `/v1/decisions` its logits of the answers that a question allows.
"""
