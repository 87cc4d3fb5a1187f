"""transformers' own generation, with and without an assistant, its blocks counted from outside."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from distillspec.math.sampling import Sampling
from distillspec.models.adapter import TransformersModel
from distillspec.models.bare import bare
from distillspec.models.quiet import quiet
from distillspec.models.seeds import globally_seeded


@dataclass(frozen=True)
class Generated:
    """One completion by `generate`."""

    ids: Tensor
    """1-D int64: what was put out, the stop token included."""
    reason: str
    """`stop` or `length`."""
    blocks: tuple[int, ...]
    """Tokens each target pass put out."""
    drafted: int
    """Tokens the assistant wrote."""
    accepted: int
    """Drafted tokens that were put out."""
    seconds: float
    """From the call to its return, reading the prompt included."""


@dataclass
class _Count:
    passes: list[tuple[int, int]] = field(default_factory=list)
    """(drafted, accepted) of every pass that judged drafted tokens."""


def generate(
    target: TransformersModel,
    draft: TransformersModel | None,
    prompt: Tensor,
    *,
    sampling: Sampling,
    max_new_tokens: int,
    seed: int,
) -> Generated:
    """Let transformers answer a prompt.

    γ and whatever else it reads of the assistant come from the draft's own generation config, as
    in serving. The global random state, from which it draws, is left as it was.

    Args:
        target: The large model.
        draft: The assistant; None for plain decoding.
        prompt: 1-D int64 ids.
        sampling: The settings.
        max_new_tokens: The length limit.
        seed: Of the sampling.
    """
    module = target.module
    with globally_seeded(module.device, seed), quiet(), torch.inference_mode(), _counted() as count:
        start = time.perf_counter()
        whole = _generate(module, draft, prompt, _config(target, sampling, max_new_tokens))
        seconds = time.perf_counter() - start
    skipped = 1 if module.config.is_encoder_decoder else len(prompt)
    ids = whole[skipped:].cpu()
    return Generated(
        ids=ids,
        reason="stop" if int(ids[-1]) in target.eos_ids else "length",
        blocks=_blocks(count, len(ids)),
        drafted=sum(drafted for drafted, _ in count.passes),
        accepted=_accepted(count, len(ids)),
        seconds=seconds,
    )


def _generate(
    module: PreTrainedModel,
    draft: TransformersModel | None,
    prompt: Tensor,
    config: GenerationConfig,
) -> Tensor:
    ids = prompt[None].to(module.device)
    call: Any = module.generate
    # The model's own fill in whatever is None in these: beams, bans, forced tokens
    with patch.object(module, "generation_config", bare(module.generation_config)):
        found: Tensor = call(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            assistant_model=None if draft is None else draft.module,
        )
    return found[0]


def _config(target: TransformersModel, sampling: Sampling, limit: int) -> GenerationConfig:
    """Make settings; those left open are neutral by default, or ids that `bare` ones name."""
    sampled = sampling.temperature > 0
    pad = target.module.config.get_text_config(decoder=True).pad_token_id
    make: Any = GenerationConfig
    config: GenerationConfig = make(
        max_new_tokens=limit,
        do_sample=sampled,
        eos_token_id=list(target.eos_ids),
        pad_token_id=target.eos_ids[0] if pad is None else pad,
    )
    if sampled:
        config.temperature = sampling.temperature
        config.top_k = 0 if sampling.top_k is None else sampling.top_k
        config.top_p = sampling.top_p
        config.min_p = sampling.min_p or None
    return config


@contextmanager
def _counted() -> Iterator[_Count]:
    """Watch what each pass of the target judges and accepts."""
    count = _Count()
    original = AssistedCandidateGenerator.update_candidate_strategy

    def watched(
        self: AssistedCandidateGenerator, ids: torch.LongTensor, scores: Tensor, num_matches: int
    ) -> None:
        count.passes.append((int(scores.shape[1]) - 1, int(num_matches)))
        original(self, ids, scores, num_matches)

    with patch.object(AssistedCandidateGenerator, "update_candidate_strategy", watched):
        yield count


def _blocks(count: _Count, tokens: int) -> tuple[int, ...]:
    """Return the sizes of the blocks; the last is cut where the output ends, plain ones are 1."""
    sizes: list[int] = []
    left = tokens
    for _, accepted in count.passes:
        if left > 0:
            sizes.append(min(accepted + 1, left))
            left -= sizes[-1]
    return (*sizes, *[1] * left)


def _accepted(count: _Count, tokens: int) -> int:
    found, left = 0, tokens
    for _, accepted in count.passes:
        found += min(accepted, max(0, left))
        left -= accepted + 1
    return found
