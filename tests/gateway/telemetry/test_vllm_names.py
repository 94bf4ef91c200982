"""Metrics under vLLM's names: each has the same value as Ratoon's metric, and vLLM's meaning."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.vllm_names import NAMES
from tests.gateway.support.operated_engine import some_stats


def values(shown: bytes) -> dict[str, float]:
    """Return each sample's value by its name and labels."""
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(shown.decode())
        for sample in family.samples
    }


def counted(vllm_model: str | None) -> GatewayMetrics:
    metrics = GatewayMetrics(vllm_model=vllm_model)
    for outcome in ("stop", "stop", "length", "cancelled"):
        metrics.started("/v1/completions")
        metrics.first_token(0.25)
        metrics.ended(
            "/v1/completions",
            outcome,
            prompt_tokens=10,
            cached_tokens=4,
            generated_tokens=3,
            seconds=1.5,
        )
    return metrics


def test_the_same_values_are_under_both_names() -> None:
    shown = values(counted("m").render(None))
    model = "('model_name', 'm')"
    assert shown["ratoon_prompt_tokens_total[]"] == 40
    assert shown[f"vllm:prompt_tokens_total[{model}]"] == 40
    assert shown[f"vllm:generation_tokens_total[{model}]"] == 12
    assert shown[f"vllm:time_to_first_token_seconds_count[{model}]"] == 4
    assert shown[f"vllm:time_to_first_token_seconds_sum[{model}]"] == 1.0
    route = "('route', '/v1/completions')"
    success = {
        reason: shown.get(
            f"vllm:request_success_total[('finished_reason', '{reason}'), {model}, {route}]"
        )
        for reason in ("stop", "length", "cancelled")
    }
    assert success == {"stop": 2, "length": 1, "cancelled": None}


def test_without_the_flag_there_is_none() -> None:
    assert b"vllm:" in counted("m").render(None)
    assert b"vllm:" not in counted(None).render(None)


def test_every_name_is_one_of_ours() -> None:
    shown = counted("m").render(some_stats()).decode()
    families = {family.name for family in text_string_to_metric_families(shown)}
    assert set(NAMES) <= families
    assert {*NAMES.values(), "vllm:kv_cache_usage_perc"} <= families


def test_the_pool_s_use_is_what_running_requests_hold() -> None:
    stats = some_stats()
    shown = values(counted("m").render(stats))
    pool = stats.pool
    used = shown["vllm:kv_cache_usage_perc[('model_name', 'm')]"]
    assert used == pool.leased / (pool.free + pool.evictable + pool.leased)
    assert 0 < used < 1
