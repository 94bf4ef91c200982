"""Two tasks of lm-evaluation-harness over the same questions: choosing an answer, and writing one.

Choosing is done as in HellaSwag. The chosen answer has the highest sum of its tokens'
log-probabilities after the question (`acc`), or the highest sum per character (`acc_norm`).
"""

from __future__ import annotations

from typing import Any

from lm_eval.api.task import ConfigurableTask

from benchmarks.harness.items import documents

CHOOSE, WRITE = "choose", "write"
SPLIT = "test"
ANSWER_TOKENS = 16
_MEAN = {"aggregation": "mean", "higher_is_better": True}


class Documents(list[dict[str, Any]]):
    """Documents as the harness reads them: a list whose columns have names."""

    @property
    def features(self) -> dict[str, None]:
        """The names of the columns."""
        return dict.fromkeys(self[0])


def choosing(limit: int) -> Any:
    """Return the task in which the harness compares log-probabilities of the choices."""
    return ConfigurableTask(
        config=_common(CHOOSE, limit)
        | {
            "output_type": "multiple_choice",
            "doc_to_choice": "choices",
            "doc_to_target": "label",
            "metric_list": [{"metric": "acc"} | _MEAN, {"metric": "acc_norm"} | _MEAN],
        }
    )


def writing(limit: int, *, is_chat: bool) -> Any:
    """Return the task in which the model writes an answer greedily.

    The answer ends at the end of its line or turn. The answer's scores are equality with the right
    choice, and common characters (chrF).
    """
    return ConfigurableTask(
        config=_common(WRITE, limit)
        | {
            "output_type": "generate_until",
            "doc_to_target": "{{choices[label]}}",
            "generation_kwargs": {
                "until": ["<|im_end|>"] if is_chat else ["\n"],
                "max_gen_toks": ANSWER_TOKENS,
                "do_sample": False,
                "temperature": 0.0,
            },
            "metric_list": [
                {"metric": "exact_match", "ignore_case": True, "ignore_punctuation": True} | _MEAN,
                {"metric": "chrf", "aggregation": "chrf", "higher_is_better": True},
            ],
        }
    )


def _common(name: str, limit: int) -> dict[str, Any]:
    return {
        "task": name,
        "custom_dataset": lambda **_: {SPLIT: Documents(documents(limit))},
        "test_split": SPLIT,
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "num_fewshot": 0,
    }
