"""Decoder-only transformers models: how rows are opened, extended and scored."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from distillspec.models.cache import RaggedCache, cache_argument
from distillspec.models.lean import is_lean, lean_states
from distillspec.models.protocol import Batch, room_of
from distillspec.models.saving import output_layer
from distillspec.models.session import CachedSession, Decoder, Rows, Source, check_context


class CausalBody:
    """What differs between families, for a decoder-only model; see `Body` in `adapter.py`.

    The body is called without its output layer, with a mask and positions only where rows are
    padded, so that decoding one sequence costs no more than transformers itself.
    """

    def __init__(self, module: PreTrainedModel, name: str, context: int | None) -> None:
        """Take a model, what messages call it, and the most tokens a row can hold.

        Raises:
            UserError: if the model takes no cache, or has no plain output layer.
        """
        self.module = module
        self.name = name
        self.context = context
        self.cache_argument = cache_argument(module.base_model, name)
        self._width = output_layer(module, name).in_features

    @property
    def batches(self) -> bool:
        """Rows of different lengths can share a pass: positions are given per row."""
        return True

    @property
    def hidden_shape(self) -> tuple[int, torch.dtype]:
        """H and the type of the hidden states."""
        return self._width, self.module.dtype

    def prefix(self, prompt: Tensor) -> Tensor:
        """Return the [L] ids that the first emitted token follows: the prompt."""
        return prompt

    def open(self, prompts: Sequence[Tensor]) -> CachedSession:
        """Start one row per prompt (1-D int64 ids); all but its last token are cached."""
        return opened(self, RaggedCache(len(prompts)), prompts, self.module.device)

    def run(self, tokens: Tensor, cache: RaggedCache, source: Source | None) -> Tensor:
        """Feed [B, k] tokens at the next columns of the cache -> [B, k, H] hidden states."""
        k = tokens.shape[1]
        mask = cache.mask(k, tokens.device)
        positions = cache.positions(k, room_of(self.context), tokens.device)
        if is_lean(self.module):
            return lean_states(self.module, tokens, cache.own, mask, positions)
        arguments = {"input_ids": tokens, "use_cache": True, self.cache_argument: cache.cache}
        if cache.padded:
            arguments |= {"attention_mask": mask, "position_ids": positions}
        hidden: Tensor = self.module.base_model(**arguments).last_hidden_state
        return hidden

    def hidden(self, batch: Batch) -> Tensor:
        """Return the [N, H] states that predict the completion tokens, with gradient.

        Rows are padded at the right, where causal attention never looks, so no mask is needed; the
        last completion token predicts nothing and is left out.

        Raises:
            UserError: if a row is longer than the context.
        """
        rows = [
            torch.cat([prompt, completion[:-1]]).to(self.module.device)
            for prompt, completion in zip(batch.prompts, batch.completions, strict=True)
        ]
        tokens = pad_sequence(rows, batch_first=True)
        check_context(self, tokens.shape[1])
        states = self.module.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        wanted = [
            states[i, len(prompt) - 1 : len(prompt) - 1 + n]
            for i, (prompt, n) in enumerate(zip(batch.prompts, batch.lengths, strict=True))
        ]
        return torch.cat(wanted)


def opened(
    model: Decoder, cache: Rows, prompts: Sequence[Tensor], device: torch.device
) -> CachedSession:
    """Feed all but the last token of each prompt (1-D int64 ids) to an empty cache.

    Raises:
        ValueError: if a prompt is empty.
    """
    if any(len(prompt) == 0 for prompt in prompts):
        raise ValueError("a prompt needs at least one token")
    tokens = pad_sequence([prompt.to(device) for prompt in prompts], batch_first=True)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    pending = tokens.gather(1, lengths[:, None] - 1)[:, 0]
    session = CachedSession(model, cache, pending)
    session.extend(tokens, lengths - 1)
    return session
