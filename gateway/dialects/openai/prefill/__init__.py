"""The routes that compute prompts and generate nothing.

The answers come from a prompt's last token. `/v1/embeddings` reads its hidden state. `/v1/rerank`
reads its logits of "yes" and "no" after a document. `/v1/decisions` reads its logits of the answers
that a question allows.
"""
