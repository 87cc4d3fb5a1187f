"""Generation settings that name a model's ids and decide nothing else."""

from __future__ import annotations

from transformers import GenerationConfig

IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
"""Settings that say what tokens mean, not how they are chosen."""


def bare(settings: GenerationConfig | None) -> GenerationConfig:
    """Return settings with the same ids, the others unset.

    transformers fills what a call leaves unset from the model's own: beams, bans, forced tokens,
    cut-offs.
    """
    make: type[GenerationConfig] = GenerationConfig
    return make(**{name: getattr(settings, name, None) for name in IDS})
