"""A copy of the gateway's metrics under vLLM's names, for dashboards and load generators.

Only metrics with the same meaning are here. A metric keeps its labels and gets the label
`model_name`. A counter keeps the label of the route.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

NAMES = {
    "ratoon_engine_running": "vllm:num_requests_running",
    "ratoon_engine_waiting": "vllm:num_requests_waiting",
    "ratoon_preemptions": "vllm:num_preemptions",
    "ratoon_prompt_tokens": "vllm:prompt_tokens",
    "ratoon_generated_tokens": "vllm:generation_tokens",
    "ratoon_prefix_queried_tokens": "vllm:prefix_cache_queries",
    "ratoon_prefix_hit_tokens": "vllm:prefix_cache_hits",
    "ratoon_requests": "vllm:request_success",
    "ratoon_queue_seconds": "vllm:request_queue_time_seconds",
    "ratoon_time_to_first_token_seconds": "vllm:time_to_first_token_seconds",
    "ratoon_inter_token_latency_seconds": "vllm:inter_token_latency_seconds",
    "ratoon_request_seconds": "vllm:e2e_request_latency_seconds",
}
_POOL = "ratoon_pool_blocks"
_LEASED = "leased"  # label value of blocks that running requests hold
_SUCCESS = ("stop", "length")


class VllmNames(Collector):
    """The metrics of `collected` that vLLM also has, under vLLM's names, for the model `model`."""

    def __init__(self, collected: Iterable[Metric], model: str) -> None:
        self._collected = collected
        self._model = {"model_name": model}

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics under vLLM's names."""
        for family in self._collected:
            if family.name == _POOL:
                yield self._usage(family)
            elif family.name in NAMES:
                yield self._renamed(family)

    def _renamed(self, family: Metric) -> Metric:
        name = NAMES[family.name]
        renamed = Metric(name, family.documentation, family.type)
        renamed.samples = [
            sample._replace(
                name=name + sample.name.removeprefix(family.name), labels=self._labels(sample)
            )
            for sample in family.samples
            if sample.labels.get("outcome", "stop") in _SUCCESS
        ]
        return renamed

    def _labels(self, sample: Sample) -> dict[str, str]:
        labels = dict(sample.labels)
        if "outcome" in labels:
            labels["finished_reason"] = labels.pop("outcome")
        return labels | self._model

    def _usage(self, pool: Metric) -> Metric:
        blocks = {sample.labels["state"]: sample.value for sample in pool.samples}
        total = sum(blocks.values())
        usage = GaugeMetricFamily(
            "vllm:kv_cache_usage_perc",
            "Share of the pool that running requests hold; 1 is all of it",
            labels=["model_name"],
        )
        usage.add_metric(
            list(self._model.values()), blocks.get(_LEASED, 0.0) / total if total else 0.0
        )
        return usage
