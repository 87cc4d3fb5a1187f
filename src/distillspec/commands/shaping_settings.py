"""What `decode` and `generate` can do to the target's distribution beside temperature and cuts.

Imports nothing heavy, so that `--help` answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Shaping:
    """Settings with transformers' names where it has them; docs/decode.md has their order."""

    min_p: float = 0.0
    """Keep tokens at least so many times as likely as the most likely one; 0 is off."""
    repetition_penalty: float = 1.0
    """Divide the positive and multiply the negative logits of tokens in prompt and text; 1 is off,
    above 1 repeats less."""
    frequency_penalty: float = 0.0
    """Subtract this from a token's logit for each time it is in the text so far; 0 is off."""
    presence_penalty: float = 0.0
    """Subtract this once from the logit of every token in the text so far; 0 is off."""
    no_repeat_ngram_size: int = 0
    """Never say the same so many tokens in a row twice; 0 is off."""
    bad_words: tuple[str, ...] = ()
    """Words never to say, as tokenized by themselves and behind a blank; JSON escapes such as
    \\u002c for a comma."""
    logit_bias: tuple[str, ...] = ()
    """What to add to logits, as ID:BIAS, such as 11:-2.5,198:-inf."""
    min_new_tokens: int = 0
    """Tokens to emit before the text may end by itself."""
    stop_strings: tuple[str, ...] = ()
    """End at the token that completes one of these; it is kept. JSON escapes such as \\n\\n, and
    \\u0020 for a blank at an end."""
    eos_token_id: tuple[int, ...] | None = None
    """Ids that end the text; leave out for the target's own."""


def changed(settings: Shaping) -> dict[str, Any]:
    """Return those of the settings that are not what they are by default."""
    values = {field.name: getattr(settings, field.name) for field in fields(Shaping)}
    default = Shaping()
    return {name: value for name, value in values.items() if value != getattr(default, name)}
