"""From text to ids and back: the one place where prompts and completions become tokens.

Training, evaluation and export all make their ids here, so that a draft meets in serving exactly
the prompts that it was trained on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import torch
from jinja2 import TemplateError
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from distillspec.errors import UserError
from distillspec.models.vocabulary import Vocabulary

UNSURE = "\ufffd"
"""What bytes that do not yet make a character decode to."""

Messages = Sequence[Mapping[str, str]]
"""A conversation: mappings with `role` and `content`."""


@dataclass(frozen=True)
class Raw:
    """A prompt that is tokenized as it stands, without a chat template."""

    text: str
    """The prompt, rendered by whoever made it."""


Prompt: TypeAlias = str | Raw | Messages
"""A string is a user's message to a chat model and plain text to any other model."""


@dataclass(frozen=True)
class Tokenizer:
    """A transformers tokenizer with the rules of this project."""

    hf: PreTrainedTokenizerBase
    """The tokenizer itself; only this room calls it."""
    encoder_decoder: bool = False
    """Whether prompts are sources of an encoder, which end with the end-of-sequence token."""
    name: str = "the model"
    """What messages call the model it belongs to."""

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The ids and their strings."""
        return Vocabulary.of(self.hf.get_vocab())

    @property
    def chat(self) -> bool:
        """Whether prompts are rendered by a chat template."""
        return self.hf.chat_template is not None

    @property
    def eos_id(self) -> int | None:
        """The id that ends a completion, None if the tokenizer has none."""
        eos: int | None = self.hf.eos_token_id
        return eos

    @property
    def special_ids(self) -> tuple[int, ...]:
        """Every id with a special meaning, ascending."""
        return tuple(sorted(self.hf.all_special_ids))

    def prompt(self, prompt: Prompt) -> Tensor:
        """Make the ids of a prompt: 1-D int64.

        A chat template renders messages, and a string as one user message; a template writes its
        own beginning-of-sequence token. Otherwise the tokenizer adds it, once. The source of an
        encoder-decoder model ends with the end-of-sequence token, any other prompt never does.

        Raises:
            UserError: if messages meet a tokenizer without a chat template, or nothing is left.
        """
        if isinstance(prompt, Raw):
            ids = self._encode(prompt.text)
        elif self.chat:
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            text = self._render([dict(message) for message in messages])
            ids = self.ids(text)
        elif isinstance(prompt, str):
            ids = self._encode(prompt)
        else:
            raise UserError(
                f"{self.name} has no chat template, so it cannot take messages: give a prompt text"
            )
        if not ids:
            raise UserError(f"a prompt came out empty for {self.name}: {prompt!r}")
        return torch.tensor(ids, dtype=torch.int64)

    def completion(self, text: str) -> Tensor:
        """Make the ids of a completion, 1-D int64, ending with exactly one end-of-sequence token.

        Raises:
            UserError: if the tokenizer has no end-of-sequence token.
        """
        if self.eos_id is None:
            raise UserError(
                f"the tokenizer of {self.name} has no end-of-sequence token to end with"
            )
        ids = self.ids(text)
        while ids and ids[-1] == self.eos_id:
            ids.pop()
        return torch.tensor([*ids, self.eos_id], dtype=torch.int64)

    def ids(self, text: str) -> list[int]:
        """Return the ids of a piece of text, no special token added."""
        found: list[int] = self.hf(text, add_special_tokens=False)["input_ids"]
        return found

    def decode(self, ids: Tensor | Sequence[int]) -> str:
        """Return the text of ids, special tokens left out."""
        listed = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        return str(
            self.hf.decode(listed, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def whole_text(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens shown as they are stored."""
        return str(self.hf.decode(list(ids), clean_up_tokenization_spaces=False))

    def piece(self, i: int) -> str:
        """Return the text of one id, special tokens shown as they are stored."""
        return self.whole_text([i])

    def is_byte(self, i: int) -> bool:
        """Tell whether an id is a byte, as SentencePiece writes what it has no piece for."""
        return re.fullmatch(r"<0x[0-9A-F]{2}>", str(self.hf.convert_ids_to_tokens(i))) is not None

    def render_like(self, other: Tokenizer) -> None:
        """Render prompts by another tokenizer's chat template from now on, or by none like it."""
        self.hf.chat_template = other.hf.chat_template

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into a folder."""
        self.hf.save_pretrained(folder)

    def _render(self, messages: list[dict[str, str]]) -> str:
        """Apply the chat template; what it refuses (a role, an order) is the user's to mend."""
        try:
            return str(
                self.hf.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            )
        except TemplateError as error:
            raise UserError(f"the chat template of {self.name} refuses this: {error}") from error

    def _encode(self, text: str) -> list[int]:
        """Tokenize plain text with one beginning token, if the tokenizer adds one."""
        ids: list[int] = self.hf(text)["input_ids"]
        bos, eos = self.hf.bos_token_id, self.eos_id
        while bos is not None and ids[:2] == [bos, bos]:
            ids = ids[1:]
        while eos is not None and ids and ids[-1] == eos:
            ids = ids[:-1]
        return [*ids, eos] if self.encoder_decoder and eos is not None else ids


@dataclass
class TextStream:
    """Text of ids that arrive a few at a time; a character split over tokens waits for its end."""

    tokenizer: Tokenizer
    """Whose ids they are."""
    ids: list[int] = field(default_factory=list)
    """All ids so far."""
    text: str = ""
    """What has been given out so far."""

    def push(self, ids: Sequence[int]) -> str:
        """Add ids and return the text that is certain by now."""
        self.ids.extend(ids)
        # A broken byte spoils its whole run of SentencePiece's byte tokens: the last run waits
        sure = len(self.ids)
        while sure and self.tokenizer.is_byte(self.ids[sure - 1]):
            sure -= 1
        return self._give(self.tokenizer.decode(self.ids[:sure]).rstrip(UNSURE))

    def finish(self) -> str:
        """Return what was held back; a true U+FFFD at the end is part of it."""
        return self._give(self.tokenizer.decode(self.ids))

    def _give(self, whole: str) -> str:
        new = whole[len(self.text) :]
        self.text += new
        return new
