"""OpenAI's Responses API: `/v1/responses`, with the responses that are stored to be continued."""
