"""The gateway: HTTP, keys, limits, prompts, streams. asyncio; runs where torch is not installed."""
