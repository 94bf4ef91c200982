"""The routes that compute prompts and generate nothing: answers are read off a prompt's last token.

`/v1/embeddings` reads its hidden state, `/v1/rerank` the logits of "yes" and "no" after each
document, `/v1/decisions` those of the answers that a question allows.
"""
