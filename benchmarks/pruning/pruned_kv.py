"""Right answers from a part of a document's KV, beside those from all of it.

    python -m benchmarks.pruning.pruned_kv [--gguf FILE] [--text needles]

Of a document's tokens each layer and KV head keeps as many, as a block of Ratoon's cache needs it;
only `kvzip, heads apart` divides them freely over layers and heads. The first four tokens are
always kept. SnapKV chooses by a question, `snapkv, another's` by another one about the document, as
where a prefix is pruned once and shared; the others choose without a question. `all asked` chooses
by all questions and their answers together: a bound of what a shared choice can keep. `truncated`
has fewer tokens of text and all their KV: the control. `of_full` is of answers right with all KV.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from benchmarks.pruning.documents import TENTHS, Document, Text, make_document
from benchmarks.pruning.masked_model import Answer, ByLayer, MaskedModel, load_model
from benchmarks.record import emit, progress

SINKS = 4
POOL = 5  # tokens over which SnapKV's scores are averaged
CHUNK, OVERLAP = 512, 8  # tokens that KVzip repeats at once, and those of the chunk before


def most(scores: ByLayer, fewer: int) -> ByLayer:
    """Keep the tokens of most score in each layer and head, and the first ones."""
    found = []
    for layer in scores:
        layer = layer.index_fill(2, torch.arange(SINKS), torch.inf)
        best = layer.topk(layer.shape[2] // fewer, 2).indices
        found.append(torch.zeros_like(layer, dtype=torch.bool).scatter_(2, best, value=True))
    return found


def most_of_all(scores: ByLayer, fewer: int) -> ByLayer:
    """Keep the tokens of most score of all layers and heads together."""
    every = torch.stack(scores).index_fill(3, torch.arange(SINKS), torch.inf)
    cut = every.flatten().topk(every.numel() // fewer).values[-1]
    return list(every >= cut)


def snapkv(model: MaskedModel, document: Document) -> ByLayer:
    """Score tokens by the attention of each question."""

    def pooled(attention: Tensor) -> Tensor:
        return F.avg_pool1d(attention.mean(1).sum(1), POOL, 1, POOL // 2)

    return model.attended([one.question for one in document.asked], pooled)


def kvzip(model: MaskedModel, document: Document) -> ByLayer:
    """Score tokens by the most attention while the document is repeated."""
    body = document.body
    chunks = [body[max(at - OVERLAP, 0) : at + CHUNK] for at in range(0, len(body), CHUNK)]
    found = [_most_attended(model, [document.repeat + one]) for one in chunks]
    return [torch.stack(layer).amax(0) for layer in zip(*found, strict=True)]


def _most_attended(model: MaskedModel, continuations: list[list[int]]) -> ByLayer:
    found = model.attended(continuations, lambda attention: attention.amax((1, 2)))
    return [layer.amax(1, keepdim=True) for layer in found]


def by_method(model: MaskedModel, document: Document, fewer: int) -> dict[str, list[Answer]]:
    """Return the answers from what each method keeps of the document that was read."""
    keys = [layer[:, None] for layer in model.prefix_keys()]
    by_question, repeated = snapkv(model, document), kvzip(model, document)
    asked = [one.question + one.answer for one in document.asked]
    kept = {
        "window": most(
            [torch.arange(key.shape[2]).expand(key.shape[:3]) + 0.0 for key in keys], fewer
        ),
        "key norm": most([-key.norm(dim=3) for key in keys], fewer),
        "snapkv": most(by_question, fewer),
        "snapkv, another's": most([layer.roll(1, 1) for layer in by_question], fewer),
        "kvzip": most(repeated, fewer),
        "kvzip, heads apart": most_of_all(repeated, fewer),
        "all asked": most(_most_attended(model, asked), fewer),
    }
    return {name: model.answers(document.asked, one) for name, one in kept.items()}


def main(
    gguf: Annotated[Path | None, typer.Option(help="A Llama with ChatML; none: handbook.")] = None,
    text: Annotated[Text, typer.Option(help="What is asked about.")] = "handbook",
    documents: Annotated[int, typer.Option(help="Each is computed once.")] = 10,
    questions: Annotated[int, typer.Option(help="About each document.")] = 10,
    tokens: Annotated[int, typer.Option(help="Of a document, about.")] = 1500,
    fewer: Annotated[int, typer.Option(help="Tokens for each one that is kept.")] = 2,
) -> None:
    """Print a JSON line for each method."""
    model = load_model(gguf)
    found: dict[str, list[Answer]] = {}
    depths: list[int] = []
    for number in range(documents):
        progress(f"document {number + 1} of {documents}")
        document = make_document(model.chat, text, number, tokens, questions)
        depths += [one.depth for one in document.asked]
        model.read(document.prefix)
        found.setdefault("full", []).extend(model.answers(document.asked))
        for name, answers in by_method(model, document, fewer).items():
            found.setdefault(name, []).extend(answers)
        model.read(document.truncated(fewer))
        found.setdefault("truncated", []).extend(model.answers(document.asked))
    for name, answers in found.items():
        _emit(name, answers, found["full"], depths)


def _emit(name: str, answers: list[Answer], full: list[Answer], depths: list[int]) -> None:
    pairs = list(zip(answers, full, depths, strict=True))
    by_depth = [
        sum(one.is_right for one, _, depth in pairs if depth == tenth) for tenth in range(TENTHS)
    ]
    whole = sum(one.is_right for one in full)
    emit(
        name,
        asked=len(answers),
        right=sum(one.is_right for one in answers),
        of_full=sum(one.is_right and other.is_right for one, other, _ in pairs) / max(whole, 1),
        log_likelihood=statistics.mean(one.log_likelihood for one in answers),
        right_by_depth=by_depth,
    )


if __name__ == "__main__":
    typer.run(main)
