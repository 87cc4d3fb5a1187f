"""Engines that serve a pair: transformers in this process, vLLM and llama.cpp by their URL."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from distillspec.commands.served import Answer, NoSuchPathError, Server
from distillspec.commands.served_model import ServedModel, check_answer, renders_otherwise
from distillspec.errors import UserError
from distillspec.math.sampling import Sampling
from distillspec.models.adapter import TransformersModel
from distillspec.models.assisted import generate
from distillspec.models.seeds import row_seed
from distillspec.models.text import Tokenizer
from distillspec.studies.outputs import Report
from distillspec.studies.serving import Answered

_COUNTER = re.compile(r"^(?:vllm|llamacpp):spec_decode_num_(\w+?)(?:_total)?(?:\{[^}]*\})? (\S+)$")
DRAFTS, DRAFTED, ACCEPTED = "drafts", "draft_tokens", "accepted_tokens"


def by_transformers(
    target: TransformersModel,
    draft: TransformersModel,
    prompts: Sequence[Tensor],
    sampling: Sampling,
    max_new_tokens: int,
    seed: int,
    report: Report,
) -> tuple[list[Answered], list[Answered]]:
    """Answer every prompt without and with the draft, in turn; the first runs are warm-up.

    Returns:
        The plain answers and those with the draft.
    """
    found: tuple[list[Answered], list[Answered]] = ([], [])
    for i, prompt in enumerate(prompts):
        for into, assistant in zip(found, (None, draft), strict=True):
            for _ in range(2 if i == 0 else 1):
                one = generate(
                    target,
                    assistant,
                    prompt,
                    sampling=sampling,
                    max_new_tokens=max_new_tokens,
                    seed=row_seed(seed, i),
                )
            into.append(
                Answered(
                    ids=one.ids,
                    reason=one.reason,
                    calls=len(one.blocks),
                    drafted=one.drafted,
                    accepted=one.accepted,
                    seconds=one.seconds,
                    alone=0,
                    blocks=one.blocks,
                )
            )
        report(i + 1, len(prompts))
    return found


def by_server(
    server: Server,
    ask: Callable[[Server], Answer],
    tokenizer: Tokenizer,
    ends: Sequence[int],
    where: str,
    *,
    gamma: int | None,
) -> Answered:
    """Ask a server one prompt, and read its counters before and after.

    Args:
        server: vLLM or llama.cpp, whose counters have the same names.
        ask: Asks it the prompt.
        tokenizer: The target's.
        ends: Ids that end an answer.
        where: Names the prompt, for messages.
        gamma: Drafted tokens per block; None where it serves without the draft, and needs no
            counters.

    Raises:
        UserError: it tells no ids or counts no drafts, or somebody else asks it too.
    """
    before = {} if gamma is None else counters(server)
    start = time.perf_counter()
    answer = ask(server)
    seconds = time.perf_counter() - start
    check_answer(answer, tokenizer, ends, where=where)
    if answer.ids is None:
        raise UserError(f"{where}: {server.url} told no token ids, which a check needs")
    ids, reason = torch.tensor(answer.ids), answer.finish_reason
    if gamma is None:
        return Answered(ids, reason, len(ids) - 1, 0, 0, seconds, alone=1, blocks=None)
    after = counters(server)
    gone = {name: round(after[name] - before[name]) for name in after}
    return Answered(
        ids=ids,
        reason=reason,
        calls=_calls(gone, len(ids), gamma, where, server.url),
        drafted=gone[DRAFTED],
        accepted=gone[ACCEPTED],
        seconds=seconds,
        alone=1,
        blocks=None,
    )


def _calls(gone: Mapping[str, int], tokens: int, gamma: int, where: str, url: str) -> int:
    """Return the target passes of an answer that put out tokens, by the counters.

    The first token comes alone. What the engine drafted past the end of an answer is not in it;
    llama.cpp drafts nothing for the last token before the length limit: that pass is not counted.

    Args:
        gone: What the counters rose by.
        tokens: Of the answer.
        gamma: Drafted tokens per block.
        where: Names the prompt, for messages.
        url: The server's.

    Raises:
        UserError: they cannot be those of this answer, or nothing was drafted.
    """
    uncounted = tokens - 1 - gone[DRAFTS] - gone[ACCEPTED]
    if uncounted > 1 and not gone[DRAFTS]:
        raise UserError(
            f"{where}: {url} drafts nothing: start it with the draft (serve.md of the export has "
            "the line)"
        )
    # At most what the last block accepted past the end
    beyond = -uncounted > max(gamma, math.ceil(gone[DRAFTED] / max(1, gone[DRAFTS])))
    if uncounted > 1 or beyond:
        why = (
            "somebody else asks it too, or it answered twice"
            if beyond
            else "its counters are not up to date"
        )
        raise UserError(
            f"{where}: {url} counted {gone[DRAFTS]} blocks and {gone[ACCEPTED]} accepted tokens "
            f"for {tokens} tokens: {why}"
        )
    return gone[DRAFTS] + max(0, uncounted)


def counters(server: Server) -> dict[str, float]:
    """Read the counters of speculative decoding.

    Raises:
        UserError: there are none.
    """
    try:
        text = server.text("../metrics")
    except NoSuchPathError as error:
        raise UserError(
            f"{error}; is it a vLLM server with its metrics, or llama.cpp's with --metrics?"
        ) from error
    found = {DRAFTS: 0.0, DRAFTED: 0.0, ACCEPTED: 0.0}
    seen = False
    for line in text.splitlines():
        match = _COUNTER.match(line)
        if match is not None and match[1] in found:
            found[match[1]] += float(match[2])
            seen = True
    if not seen:
        raise UserError(
            f"{server.url} counts no drafts: start it with the draft (serve.md of the export has "
            "the line)"
        )
    return found


def draft_sampling(sampling: Sampling) -> Sampling:
    """Return how vLLM's draft samples where it does: it takes over the temperature alone."""
    return Sampling(sampling.temperature)


def template_differs(server: Server, model: ServedModel, tokenizer: Tokenizer) -> bool | None:
    """Say whether the server renders a chat otherwise; None where it cannot be asked."""

    def rendered(messages: Sequence[Mapping[str, str]]) -> Sequence[int]:
        body = {"model": model.name, "messages": messages, "add_generation_prompt": True}
        ids: Sequence[int] = server.ask("../tokenize", body)["tokens"]
        return ids

    return renders_otherwise(tokenizer, rendered)
