"""Encoder-decoder transformers models: how rows are opened, extended and scored."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from distillspec.errors import UserError
from distillspec.models.cache import RaggedCache, cache_argument
from distillspec.models.protocol import Batch, room_of
from distillspec.models.saving import output_layer
from distillspec.models.session import CachedSession, Source, check_batch, check_context


class Stacks(Protocol):
    """The two halves of an encoder-decoder model, as transformers names them."""

    def get_encoder(self) -> nn.Module:
        """Return the encoder."""
        ...

    def get_decoder(self) -> nn.Module:
        """Return the decoder."""
        ...


class Seq2SeqBody:
    """What differs between families, for an encoder-decoder model; see `Body` in `adapter.py`.

    The encoder runs once per prompt. Its rows are padded at the right, behind a mask.
    """

    def __init__(
        self,
        module: PreTrainedModel,
        name: str,
        context: int | None,
        start_id: int,
        *,
        source_context: int | None,
    ) -> None:
        """Take a model.

        Args:
            module: The model, output layer included.
            name: What messages call it.
            context: The most tokens the decoder can hold, None for no limit.
            start_id: The decoder's first token, which predicts the first completion token.
            source_context: The most tokens the encoder can read, None for no limit.

        Raises:
            UserError: if the decoder takes no cache, or the model has no plain output layer.
        """
        self.module = module
        self.name = name
        self.context = context
        self.start_id = start_id
        self._source_context = source_context
        # The stacks are looked up at each call, so that a wrapper put around them is not bypassed
        self._stacks = cast(Stacks, module)
        decoder = self._stacks.get_decoder()
        self._cache_argument = cache_argument(decoder, name)
        self._width = output_layer(module, name).in_features
        accepted = inspect.signature(decoder.forward).parameters
        self._numbers_rows = "position_ids" in accepted
        self._relative = getattr(module.config, "relative_attention_num_buckets", None) is not None

    @property
    def batches(self) -> bool:
        """Whether rows can share a pass: positions are relative, or are given per row."""
        return self._relative or self._numbers_rows

    @property
    def hidden_shape(self) -> tuple[int, torch.dtype]:
        """H and the type of the hidden states."""
        return self._width, self.module.dtype

    def prefix(self, prompt: Tensor) -> Tensor:
        """Return the [1] ids that the first emitted token follows: the decoder start token."""
        return torch.tensor([self.start_id])

    def open(self, prompts: Sequence[Tensor]) -> CachedSession:
        """Encode one source per row (1-D int64 ids); the decoder start token is pending."""
        check_batch(self, len(prompts))
        with torch.no_grad():
            source = self._encode(prompts)
        pending = torch.full((len(prompts),), self.start_id, device=self.module.device)
        return CachedSession(self, RaggedCache(len(prompts), cross=True), pending, source)

    def run(self, tokens: Tensor, cache: RaggedCache, source: Source | None) -> Tensor:
        """Feed [B, k] tokens at the next columns of the cache -> [B, k, H] hidden states."""
        if source is None:
            raise TypeError("an encoder-decoder model decodes from a source")
        k = tokens.shape[1]
        arguments = {"input_ids": tokens, "use_cache": True, self._cache_argument: cache.cache}
        if cache.padded:
            arguments["attention_mask"] = cache.mask(k, tokens.device)
            if self._numbers_rows:
                limit = room_of(self.context)
                arguments["position_ids"] = cache.positions(k, limit, tokens.device)
        return self._decode(arguments, source)

    def hidden(self, batch: Batch) -> Tensor:
        """Return the [N, H] states that predict the completion tokens, with gradient.

        The decoder's input is the start token and the completion without its last token, padded
        at the right, where causal attention never looks.

        Raises:
            UserError: if a completion is longer than the decoder's context.
        """
        start = torch.tensor([self.start_id])
        rows = [
            torch.cat([start, row[:-1].cpu()]).to(self.module.device) for row in batch.completions
        ]
        tokens = pad_sequence(rows, batch_first=True)
        check_context(self, tokens.shape[1])
        source = self._encode(batch.prompts)
        # Every column is text: without a mask some decoders (T5Gemma's) hide each padding id
        seen = torch.ones_like(tokens)
        states = self._decode(
            {"input_ids": tokens, "attention_mask": seen, "use_cache": False}, source
        )
        return torch.cat([states[i, :n] for i, n in enumerate(batch.lengths)])

    def _encode(self, prompts: Sequence[Tensor]) -> Source:
        """Run the encoder over right-padded sources.

        Raises:
            UserError: if one is longer than the encoder can read.
        """
        longest, limit = max(map(len, prompts)), self._source_context
        if limit is not None and longest > limit:
            raise UserError(
                f"a source of {longest} tokens is more than the {limit} that the encoder of "
                f"{self.name} can read: shorten or drop it"
            )
        tokens = pad_sequence(
            [prompt.to(self.module.device) for prompt in prompts], batch_first=True
        )
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.module.device)
        columns = torch.arange(tokens.shape[1], device=self.module.device)
        ragged = len({len(prompt) for prompt in prompts}) > 1
        mask = (columns < lengths[:, None]).long() if ragged else None
        encoder = self._stacks.get_encoder()
        return Source(encoder(input_ids=tokens, attention_mask=mask).last_hidden_state, mask)

    def _decode(self, arguments: dict[str, object], source: Source) -> Tensor:
        """Run the decoder against a source -> [B, k, H]."""
        hidden: Tensor = self._stacks.get_decoder()(
            **arguments, encoder_hidden_states=source.states, encoder_attention_mask=source.mask
        ).last_hidden_state
        return hidden
