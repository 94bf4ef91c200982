"""The gateway: HTTP, keys, limits, prompts and streams, on asyncio. It needs no torch.

    startup         a process from its start to its end: opens, composes and closes all below
    tenant_cache    probes and warms a tenant's own prompts, sent as bodies of other routes
    dialects        OpenAI, Responses, Anthropic, Gemini, OpenRouter: bodies in, streams out
    admin, page     the operator's routes; the operator's page and the tenants' page
    overview        the data that the operator's page shows about a running server
    requests        one request: admitted, permitted, answered, measured, charged
    generation      turns the engine's events into text
    prompts         turns messages into token ids
    receipts        signed proofs that a deleted tenant's data were erased
    auth, limits, sharing, usage     a tenant: its keys, limits, namespaces, tokens
    http            connections, bodies, errors; knows no dialect
    router_process  one router for all workers
    telemetry       metrics, logs, the latest refusals
    replicas        several engines as one
    state           the stored records, in SQLite or in Redis
    diagnosis       why a prompt missed the cache
    processes       workers, threads that tenants share, repeated tasks
    caller, errors, config, tenant_limits, ...     small values that all of them use
    routing         the choice of an engine; imports nothing from the gateway
    turn_formats    models' turns; imports nothing from the gateway

Each folder imports only from folders below it. A new route of tenants belongs to a dialect. A new
limit belongs to `tenant_limits.py` and `limits/`, a bound for all tenants to `config.py`. A new
flag's setting belongs to `config.py`, and a new metric to `telemetry/`.
"""
