"""Completions from llama.cpp's server in its own protocol, which tells ids and takes samplers.

Its OpenAI completions tell no ids, so that nothing could be held against the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distillspec.commands.served import Answer, Server
from distillspec.commands.served_model import renders_otherwise
from distillspec.errors import UserError
from distillspec.math.sampling import Sampling
from distillspec.models.text import Tokenizer

DRAFT_TOP_K = 10
"""Tokens that its draft samples from when it samples (`--spec-draft-sampling probabilistic`); a
number in its sources, which no flag changes."""
_REASONS = {"eos": "stop", "limit": "length"}


def draft_sampling(sampling: Sampling) -> Sampling:
    """Return how its draft samples where it does: it takes over the temperature alone."""
    return Sampling(sampling.temperature, DRAFT_TOP_K)


def ask_llama_cpp(
    server: Server, prompt: Sequence[int], *, sampling: Sampling, max_tokens: int, seed: int
) -> Answer:
    """Ask for one completion.

    Args:
        server: Whom; its URL may end in /v1.
        prompt: Ids.
        sampling: The settings to sample at; its samplers are told to come in the same order.
        max_tokens: The length limit in tokens.
        seed: Of the sampling.

    Raises:
        UserError: as `Server.ask`; and if the answer is no completion, or was cut otherwise.
    """
    body = {
        "prompt": list(prompt),
        "n_predict": max_tokens,
        "samplers": ["temperature", "top_k", "top_p", "min_p"],
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or 0,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "seed": seed,
        "stream": False,
        "cache_prompt": False,
        "return_tokens": True,
    }
    data = server.ask("../completion", body, seed=seed)
    try:
        text, why = str(data["content"]), str(data["stop_type"])
        ids = tuple(int(i) for i in data["tokens"])
        truncated = bool(data["truncated"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{server.url}: answered what is no completion of llama.cpp's: {str(data)[:120]}"
        ) from error
    if truncated or why not in _REASONS:
        told = "by its context" if truncated else f"by {why!r}"
        raise UserError(f"{server.url}: an answer ended {told}; expected eos or limit")
    return Answer(text=text, finish_reason=_REASONS[why], ids=ids or None, logprobs=None, top=None)


def template_differs(server: Server, tokenizer: Tokenizer) -> bool | None:
    """Say whether the server renders a chat otherwise; None where it cannot be asked."""

    def rendered(messages: Sequence[Mapping[str, str]]) -> Sequence[int]:
        prompt = server.ask("../apply-template", {"messages": messages})["prompt"]
        ids: Sequence[int] = server.ask("../tokenize", {"content": prompt})["tokens"]
        return ids

    return renders_otherwise(tokenizer, rendered)
