"""A transformers model, its tokenizer and its head together: the `LanguageModel` of real use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distillspec.errors import UserError
from distillspec.models.causal import CausalBody
from distillspec.models.heads import Head
from distillspec.models.lora import merged
from distillspec.models.protocol import Batch
from distillspec.models.saving import Trimmed, write_folder
from distillspec.models.session import CachedSession
from distillspec.models.static import Compiler, StaticBody
from distillspec.models.text import Tokenizer
from distillspec.models.trial import try_out


class Body(Protocol):
    """What differs between decoder-only and encoder-decoder models."""

    name: str
    context: int | None

    def prefix(self, prompt: Tensor) -> Tensor:
        """Return the [L] ids that the first emitted token follows."""
        ...

    def open(self, prompts: Sequence[Tensor]) -> CachedSession:
        """Start one row per prompt (1-D int64 ids)."""
        ...

    def hidden(self, batch: Batch) -> Tensor:
        """Return the [N, H] states that predict the completion tokens, with gradient."""
        ...


class TransformersModel:
    """A target or draft; `LanguageModel` in `protocol.py` says what the methods promise."""

    def __init__(
        self,
        module: PreTrainedModel,
        tokenizer: Tokenizer,
        body: Body,
        head: Head,
        eos_ids: tuple[int, ...],
        trimmed: Trimmed | None = None,
    ) -> None:
        """Put the parts together; `wrap` and `surgery.py` find and check them.

        Args:
            module: The transformers model, output layer included: what is trained and saved.
            tokenizer: Its tokenizer.
            body: How to run it up to the last hidden state.
            head: From there to logits.
            eos_ids: The ids that end a sequence.
            trimmed: How a trimmed head was cut, None for a whole one.
        """
        self.module = module
        self.tokenizer = tokenizer
        self.name = tokenizer.name
        self.vocabulary = tokenizer.vocabulary
        self.kept = head.kept
        self.eos_ids = eos_ids
        self.context = body.context
        self._body = body
        self._head = head
        self._trimmed = trimmed

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return self.module.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the parameters and the hidden states."""
        return self.module.dtype

    def parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over the parameters."""
        return self.module.parameters()

    def prefix(self, prompt: Tensor) -> Tensor:
        """Return the [L] ids that the first emitted token follows."""
        return self._body.prefix(prompt)

    def open(self, prompts: Sequence[Tensor]) -> CachedSession:
        """Start one row per prompt (1-D int64 ids)."""
        return self._body.open(prompts)

    def head(self, hidden: Tensor) -> Tensor:
        """Map [..., H] hidden states to [..., V] logits, −inf at ids that cannot be emitted."""
        return self._head.whole(hidden)

    def head_at(self, ids: Tensor) -> Callable[[Tensor], Tensor]:
        """Return `head` for some ids alone, of the weights as they are."""
        return self._head.at(ids)

    @property
    def projection(self) -> nn.Module:
        """The layer that multiplies by the output matrix."""
        return self._head.linear

    def narrow_head(
        self, hidden: Tensor, projection: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Map [..., H] to the [..., K] logits of the kept ids."""
        return self._head.narrow(hidden, projection)

    def hidden(self, batch: Batch) -> Tensor:
        """Return the [N, H] states that predict the completion tokens, with gradient."""
        return self._body.hidden(batch)

    def static(self, compiler: Compiler = torch.compile) -> TransformersModel:
        """Return the same model decoding in passes of fixed shapes, the short ones compiled.

        The module is shared. For an accelerator give `partial(torch.compile,
        mode="reduce-overhead")`, which records CUDA graphs.

        Args:
            compiler: Makes a forward pass a faster one.

        Raises:
            UserError: naming the model, if it is an encoder-decoder, has sliding windows, or gives
                no or other logits in such passes.
        """
        if not isinstance(self._body, CausalBody):
            raise UserError(f"{self.name}: only decoder-only models have passes of fixed shapes")
        plain = self._on(StaticBody(self._body, lambda forward: forward))
        try_out(plain, self._head, "in passes of fixed shapes")
        return self._on(StaticBody(self._body, compiler))

    def _on(self, body: Body) -> TransformersModel:
        """Return the same model with another body."""
        return TransformersModel(
            self.module, self.tokenizer, body, self._head, self.eos_ids, self._trimmed
        )

    def save(self, folder: str | Path) -> None:
        """Write a complete transformers folder: weights, configs, tokenizer.

        A trimmed head is written whole, its kept rows as trained and the others 0, with
        `kept_ids.json` beside it: plain transformers loads it untrimmed. An input embedding stays
        whole and as trained, also where it was one with the head before trimming.
        Adapters are merged into the weights they adapt.
        """
        write_folder(Path(folder), merged(self.module), self.tokenizer, self._trimmed)
