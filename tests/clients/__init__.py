"""Frameworks that people use, against the running gateway; skipped where one is not installed.

Python's are installed beside pytest (`pip install openai-agents langchain-openai
langchain-anthropic instructor litellm 'pydantic-ai-slim[openai,anthropic]'`). Node's are looked for
where `CLIENTS_NODE_MODULES` says (`npm install ai @ai-sdk/openai @ai-sdk/openai-compatible
@ai-sdk/anthropic @anthropic-ai/claude-code` in that directory).
"""
