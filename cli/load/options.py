"""The flags of `ratoon bench`."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from cli.load.phases import WorkloadName
from cli.options.flags import field
from cli.options.options import Json

EndpointName = Literal["completions", "chat"]
_load = partial(field, panel="Load")
_arrivals = partial(field, panel="Arrivals")
_slo = partial(field, panel="Service level objective (SLO)")


@dataclass(frozen=True, slots=True)
class LoadFlags:
    """The flags for the requests of `ratoon bench`."""

    workload: WorkloadName | None = _load(
        None,
        "Run a named workload instead of the load below; only --vocab, --seed, --timeout-s "
        "and --json apply to it.",
    )
    small: bool = _load(False, "Run the workload at a size for a CPU and a short context.")
    processes: int = _load(
        4, "Processes that send the requests of a workload or an open loop.", min=1, max=64
    )
    endpoint: EndpointName = _load(
        "completions", "'completions' sends token ids; 'chat' sends words, of about as many tokens."
    )
    extra_body: str | None = _load(
        None,
        """JSON of fields to add to every request, or to replace: '{"tools": [...], """
        """"tool_choice": "required"}'.""",
    )
    requests: int = _load(64, "Total number of requests.", min=1)
    concurrency: int = _load(8, "Requests in flight at once, in a closed loop.", min=1)
    prompt_tokens: int = _load(512, "Tokens of every prompt.", min=1)
    shared_tokens: int | None = _load(
        None, "Tokens that all prompts begin with. Default: half of --prompt-tokens.", min=0
    )
    output_tokens: int = _load(64, "Tokens of every answer.", min=1)
    dataset: Path | None = _load(
        None,
        "File with ShareGPT, MT-bench's questions or a trace: gives lengths of prompts and "
        "answers, in place of the three flags above.",
    )
    tokenizer: Path | None = _load(
        None,
        "Directory whose tokenizer.json counts --dataset's texts. [dim]\\[default: the "
        "server's /tokenize][/dim]",
        show_default=False,
    )
    trace_block: int = _load(512, "Tokens that one id of a trace stands for.", min=1)
    vocab: int = _load(
        256, "Token ids are drawn below this; at most the model's vocabulary.", min=16
    )
    seed: int | None = _load(
        None, "Seed of the prompts. Default: a new one, so that no run hits earlier prefixes."
    )
    timeout_s: float = _load(120.0, "Seconds of silence after which a request failed.", min=0.1)
    plot: Path | None = _load(None, "Write plots, as SVG, into this directory.")
    json: Json = False


@dataclass(frozen=True, slots=True)
class ArrivalFlags:
    """The flags for the times at which requests are sent."""

    rate: float | None = _arrivals(
        None,
        "Arrivals per second, in an open loop; 'inf': all at once. [dim]\\[default: a "
        "closed loop of --concurrency callers][/dim]",
        min=0.001,
        show_default=False,
        callback=None,
    )
    arrivals: str | None = _arrivals(
        None,
        "'poisson', 'constant', or a trace whose timestamps are replayed (with --rate: stretched "
        "to it). [dim]\\[default: poisson][/dim]",
        show_default=False,
    )
    batching: str | None = _arrivals(
        None,
        "Hold requests back: 'static:32' until 32 wait and the batch before has ended, "
        "'dynamic:32:50ms' until 32 wait or one has waited 50 ms; 'continuous': never. Several, "
        "or 'all', are compared. Without --rate all arrive at once.",
    )

    @property
    def is_open(self) -> bool:
        """True if requests arrive at times independent of answers."""
        return any(given is not None for given in (self.rate, self.arrivals, self.batching))


@dataclass(frozen=True, slots=True)
class SloFlags:
    """The flags for the bounds on a request's times."""

    slo: str | None = _slo(
        None, "Upper bounds on times, such as 'ttft=2s,tpot=50ms,e2e=30s'; adds the goodput."
    )
    slo_share: float = _slo(
        0.9, "Share of requests that must meet --slo, for --find-rate.", min=0.01, max=1.0
    )
    find_rate: bool = _slo(
        False,
        "Find the highest rate at which --slo-share of requests "
        "meet --slo, by bisection from --rate.",
    )
    find_seconds: float = _slo(
        120.0, "Seconds that the search may take; each rate is tried for a tenth of them.", min=1.0
    )
