"""How well a model predicts given texts: what it is worth by itself, apart from any pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distillspec.models.protocol import LanguageModel
from distillspec.studies.estimates import Estimate, estimate, ratio
from distillspec.studies.outputs import each_forced

ROWS = 256
"""Positions whose logits are held at once."""


class Perplexity(TypedDict):
    """What a model says of some texts, intervals over texts."""

    tokens: int
    """Scored, the stop tokens included."""
    nats_per_token: Estimate
    """Mean of −ln p."""
    perplexity: Estimate
    """Its exponential; of models with different tokenizers not comparable."""
    bits_per_byte: Estimate
    """−log2 p of a text per UTF-8 byte, the stop token's share included: comparable between
    tokenizers."""
    unigram_perplexity: float
    """What a model reaches that knows nothing but how often each token occurs in these very
    texts."""


@torch.inference_mode()
def surprisals(
    model: LanguageModel,
    prompts: Sequence[Tensor],
    completions: Sequence[Tensor],
    *,
    batch_size: int,
) -> NDArray[np.float64]:
    """Return the [texts] sums of −ln p over each completion, at temperature 1, in nats."""
    found = np.zeros(len(prompts))
    forced = each_forced((model,), prompts, completions, batch_size=batch_size)
    for i, ((states,), ids) in enumerate(zip(forced, completions, strict=True)):
        for rows in torch.split(torch.arange(len(ids)), ROWS):
            logp = torch.log_softmax(model.head(states[rows]).double(), dim=-1)  # [n, V]
            found[i] -= float(logp.gather(1, ids[rows, None].to(logp.device)).sum())
    return found


def perplexity(
    nats: NDArray[np.float64], completions: Sequence[Tensor], texts: Sequence[str]
) -> Perplexity:
    """Put together what a model says of some texts.

    Args:
        nats: [texts] sums of −ln p, finite.
        completions: The ids of each text.
        texts: The texts, none of them empty.

    Raises:
        ValueError: there is no text, or a sum is infinite.
    """
    lengths = np.array([len(ids) for ids in completions], dtype=np.float64)
    sizes = np.array([len(text.encode()) for text in texts], dtype=np.float64)
    return Perplexity(
        tokens=int(lengths.sum()),
        nats_per_token=ratio(nats, lengths),
        perplexity=estimate(lambda s: np.exp(s[:, 0] / s[:, 1]), np.stack([nats, lengths], axis=1)),
        bits_per_byte=ratio(nats / math.log(2), sizes),
        unigram_perplexity=_unigram(completions),
    )


def _unigram(completions: Sequence[Tensor]) -> float:
    """Return exp of the entropy of the ids' frequencies."""
    counts = torch.cat(list(completions)).bincount().double()
    share = counts[counts > 0] / counts.sum()
    return math.exp(-float((share * share.log()).sum()))
