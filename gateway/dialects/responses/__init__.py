"""OpenAI's Responses API: `/v1/responses`, and stored responses that can be continued."""
