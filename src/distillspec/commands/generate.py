"""`generate`: the target's answers as fixed data, from here or from a server, and its cache."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor

from distillspec.commands.answers import Local, Served, Shards
from distillspec.commands.pairs import at_least, load_model, prompt_ids, training_rows
from distillspec.commands.progress import bar, console
from distillspec.commands.served import Server
from distillspec.commands.served_model import check_tokenizer, find_model
from distillspec.commands.settings import Generate
from distillspec.commands.shaping_settings import changed
from distillspec.commands.unfinished import Unfinished
from distillspec.errors import UserError
from distillspec.math.sampling import Sampling
from distillspec.models.files_digest import files_digest
from distillspec.models.loading import load_writer
from distillspec.models.text import Tokenizer
from distillspec.training.offline import SERVED, OfflineTarget, Origin, make_cache


def run(settings: Generate) -> dict[str, Any]:
    """Answer every prompt and write the file, whole or not at all; a rerun goes on."""
    at_least(1, settings, "max_new_tokens", "batch_size", "cache_k", "concurrency")
    at_least(0, settings, "retries")
    _make_way(settings)
    _check_shaping(settings)
    sampling = Sampling(settings.temperature, settings.top_k, settings.top_p, settings.min_p)
    rows = training_rows(settings)
    writer, weights, dtype = _writer(settings, sampling)
    prompts = prompt_ids(writer.tokenizer, rows, context=writer.context)
    sampler = {**_sampler(settings), "dtype": dtype}
    asked = {"weights": weights, "prompts": _digest(prompts), "logprobs": settings.logprobs}
    asked |= {"cache": None if settings.cache is None else settings.cache_k}
    cache = _cache(settings, writer.tokenizer, weights, sampler)
    shards = None if cache is None else Shards(cache, prompts)
    unfinished = Unfinished(
        settings.out, {**asked, **sampler}, keep=None if shards is None else shards.keep
    )
    before = len(unfinished.rows)
    if before:
        console().print(f"going on with {unfinished.path}: {before} of {len(rows)} are there")
    todo = [i for i in range(len(rows)) if i not in unfinished.rows]
    with bar("target data") as report:
        for done in writer.answers(todo, rows, prompts, cache):
            unfinished.add(done)
            report(len(unfinished.rows), len(rows))
    answers = [unfinished.rows[i] for i in range(len(rows))]
    if shards is not None:
        shards.finish(answers, settings.out)
    unfinished.finish([_line(answer) for answer in answers])
    result = {
        "out": str(settings.out),
        "prompts": len(answers),
        "tokens": sum(len(answer["target_ids"]) for answer in answers),
        "stopped": sum(answer["finish_reason"] == "stop" for answer in answers),
        "resumed": before,
        "ids": "sampled" if all(answer["sampled"] for answer in answers) else "from the text",
    }
    return result if cache is None else {**result, "cache": _told(cache)}


def _writer(settings: Generate, sampling: Sampling) -> tuple[Local | Served, str, str | None]:
    """Return who answers, what tells its weights from others', and their type, where it is known.

    "auto" is not the type: it is the one that the weights are stored in.
    """
    if settings.server is None:
        target = load_model(settings.target, dtype=settings.dtype, device=settings.device)
        dtype = str(target.dtype).removeprefix("torch.")
        return Local(target, settings, sampling), files_digest(settings.target), dtype
    server = Server(settings.server, settings.timeout, settings.retries)
    model = find_model(server, settings.model, settings.target)
    tokenizer, ends = load_writer(settings.target)
    check_tokenizer(server, model, tokenizer)
    console().print(f"{settings.server} serves {model.name}")
    served = Served(server, model, tokenizer, ends, settings, sampling)
    return served, f"{SERVED}{model.name}", None


def _sampler(settings: Generate) -> dict[str, Any]:
    names = ("temperature", "top_k", "top_p", "max_new_tokens", "seed")
    return {name: getattr(settings, name) for name in names} | changed(settings)


def _cache(
    settings: Generate, tokenizer: Tokenizer, weights: str, sampler: dict[str, Any]
) -> OfflineTarget | None:
    if settings.cache is None:
        return None
    vocabulary = tokenizer.vocabulary
    if settings.cache_k > vocabulary.size:
        raise UserError(
            f"--cache-k {settings.cache_k}: {tokenizer.name} has {vocabulary.size} ids in all"
        )
    origin = Origin(
        target=settings.target,
        weights=weights,
        vocabulary=vocabulary.digest,
        size=vocabulary.size,
        k=settings.cache_k,
        stored=settings.cache_dtype,
        sampling=sampler,
    )
    return make_cache(settings.cache, origin)


def _line(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key != "sampled"}


def _digest(prompts: Sequence[Tensor]) -> str:
    return sha256(repr([prompt.tolist() for prompt in prompts]).encode()).hexdigest()[:16]


def _told(cache: OfflineTarget) -> dict[str, Any]:
    return {
        "folder": str(cache.folder),
        "examples": len(cache),
        "positions": cache.positions,
        "k": cache.origin.k,
        "bytes": cache.bytes_on_disk,
    }


def _check_shaping(settings: Generate) -> None:
    """Refuse what would make the numbers in the file mean something else."""
    flags = [f"--{name.replace('_', '-')}" for name in changed(settings)]
    if settings.logprobs and flags:
        raise UserError(
            f"--logprobs are those of temperature, --top-k and --top-p alone: leave out {flags[0]}"
        )
    local = [flag for flag in flags if flag != "--min-p"]
    if settings.server is not None and local:
        raise UserError(f"{local[0]} is not sent to a --server: leave it out, or load the target")


def _make_way(settings: Generate) -> None:
    """Refuse what cannot be written or asked, before the target has worked for it."""
    out: Path = settings.out
    if out.suffix != ".jsonl":
        raise UserError(f"--out {out}: expected a name ending in .jsonl, which prompt files have")
    if out.exists():
        raise UserError(f"--out {out}: exists already; give a new file, or remove it")
    if settings.model is not None and settings.server is None:
        raise UserError(f"--model {settings.model} names a model of a --server, and none is given")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror}") from error


def tell(result: dict[str, Any]) -> str:
    """Say what was written."""
    lines = [
        f"{result['out']}: {result['prompts']} answers, {result['tokens']} tokens, "
        f"{result['stopped']} ended by themselves"
    ]
    if result["ids"] != "sampled":
        lines.append("the server gave no token ids: the text was tokenized anew")
    if "cache" in result:
        cache = result["cache"]
        lines.append(
            f"{cache['folder']}: {cache['positions']} positions, k = {cache['k']}, "
            f"{cache['bytes'] / cache['positions']:.0f} bytes each"
        )
    return "\n".join(lines)
