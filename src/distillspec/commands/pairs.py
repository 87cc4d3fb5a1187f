"""What the verbs share: loading models and prompts as their settings say."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from distillspec import models
from distillspec.commands.measure_settings import Measure
from distillspec.commands.progress import bar, console
from distillspec.commands.serving_settings import CheckExport
from distillspec.commands.settings import Distill, Generate, Train
from distillspec.commands.trim_settings import Trim
from distillspec.decoding import Output
from distillspec.errors import UserError, first_line
from distillspec.math.sampling import Sampling
from distillspec.models import load, load_pair
from distillspec.models.adapter import TransformersModel
from distillspec.models.text import Raw, Tokenizer
from distillspec.studies.outputs import complete_all, seeded
from distillspec.tasks import Row, read_prompts, read_valid_prompts, task_named
from distillspec.training.data import Example
from distillspec.training.processes import Processes


def device_of(setting: str) -> str:
    """Read `auto`, `cpu`, `cuda`, `cuda:1` and return the name of the device.

    Raises:
        UserError: there is no such device here.
    """
    if setting == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=setting)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {setting!r} cannot be used: {first_line(error)}") from error
    return setting


def own_device(processes: Processes, setting: str) -> str:
    """Return where a process computes: where it was started to, else where `--device` says.

    Raises:
        UserError: they contradict one another.
    """
    if processes.device is None:
        return setting
    if setting not in ("auto", processes.device.type):
        raise UserError(
            f"--device {setting}: {processes.count} processes train together, each on a device of "
            f"its own, here {processes.device}; leave out --device"
        )
    return str(processes.device)


def dtype_of(setting: str) -> torch.dtype | None:
    """Read a dtype by name; `auto` is None, the type the weights are stored in."""
    return (
        None
        if setting == "auto"
        else {
            "float32": torch.float32,
            "bfloat16": torch.bfloat16,
            "float16": torch.float16,
        }[setting]
    )


def load_model(path: str, *, dtype: str = "auto", device: str = "auto") -> TransformersModel:
    """Load one model as its flags say, and say on stderr that it is being loaded."""
    console().print(f"loading {path}")
    return load(path, dtype=dtype_of(dtype), device=device_of(device))


def load_both(
    target: str, draft: str, *, dtype: str = "auto", device: str = "auto"
) -> tuple[TransformersModel, TransformersModel]:
    """Load a pair as its flags say, and say on stderr that it is being loaded."""
    console().print(f"loading {target} and {draft}")
    return load_pair(target, draft, dtype=dtype_of(dtype), device=device_of(device))


def load_together(
    target: str, drafts: Sequence[str], *, dtype: str = "auto", device: str = "auto"
) -> list[TransformersModel]:
    """Load a target and its drafts as their flags say, and say on stderr that they are loaded."""
    console().print(f"loading {', '.join([target, *drafts])}")
    return models.load_together(target, drafts, dtype=dtype_of(dtype), device=device_of(device))


def compiled(*loaded: TransformersModel) -> list[TransformersModel]:
    """Have models decode in compiled passes of fixed shapes, on a GPU recorded as CUDA graphs.

    Raises:
        UserError: naming a model that has no such passes.
    """
    # One number of tokens, rows and columns is one shape; torch gives up at eight of them
    torch._dynamo.config.recompile_limit = 64
    return [
        model.static(
            partial(
                torch.compile,
                dynamic=False,
                mode="reduce-overhead" if model.device.type == "cuda" else None,
            )
        )
        for model in loaded
    ]


def names_of(flag: str, paths: Sequence[str]) -> dict[str, str]:
    """Call each model by the end of its path that tells it from the others.

    Raises:
        UserError: a model is given twice, or none is, or a name is empty.
    """
    if not all(paths) or not paths or len(set(paths)) < len(paths):
        raise UserError(f"{flag} {','.join(paths)}: expected at least one model, each once")
    for depth in range(1, 1 + max(len(Path(path).parts) for path in paths)):
        names = ["/".join(Path(path).parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return dict(zip(names, paths, strict=True))
    return {path: path for path in paths}


def answer_all(
    target: TransformersModel,
    prompts: Sequence[Tensor],
    settings: CheckExport | Distill | Generate | Measure | Trim,
    *,
    sampling: Sampling,
    what: str,
) -> list[Output]:
    """Let the target answer every prompt as the flags say, with a bar that tells `what`."""
    with bar(what) as report:
        return complete_all(
            target,
            prompts,
            sampling=sampling,
            max_new_tokens=settings.max_new_tokens,
            batch_size=settings.batch_size,
            generators=seeded(settings.seed, len(prompts)),
            report=report,
        )


def at_least(least: int, settings: object, *names: str) -> None:
    """Refuse settings that are too small to mean anything.

    Raises:
        UserError: naming the flag.
    """
    for name in names:
        value = getattr(settings, name)
        if value < least:
            flag = name.replace("_", "-")
            raise UserError(f"--{flag} {value}: expected a whole number of at least {least}")


def rows_of(
    prompts: str,
    limit: int | None,
    *,
    skip_invalid: bool,
    training: bool = False,
    seed: int = 0,
) -> list[Row]:
    """Read a prompt file, a task by its name, or a file of a task as NAME=FILE.

    Args:
        prompts: What the flag says.
        limit: At most so many rows; of a task a random draw, of a file the first ones.
        skip_invalid: Leave out a file's invalid lines, and say on stderr how many.
        training: Whether the rows are to learn from: of a task without a file its training split
            is read then, else the split to evaluate on.
        seed: Of the draw.

    Raises:
        UserError: as `read_prompts` and `read_valid_prompts`; and if a task is asked to skip rows.
    """
    named = task_named(prompts)
    if named is not None:
        task, data = named
        if skip_invalid:
            raise UserError(f"--skip-invalid is for prompt files, and {prompts} is a task's rows")
        read = task.read_training if training else task.read
        return read(data, limit=limit, seed=seed)
    if not skip_invalid:
        return read_prompts(prompts, limit=limit)
    reading = read_valid_prompts(prompts, limit=limit)
    console().print(f"{prompts}: {reading}")
    return list(reading.rows)


def training_rows(settings: Generate | Train) -> list[Row]:
    """Read the rows to learn from, as the flags say."""
    return rows_of(
        settings.prompts,
        settings.limit,
        skip_invalid=settings.skip_invalid,
        training=True,
        seed=settings.seed,
    )


def ascending(flag: str, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Sort the numbers of a flag, each once.

    Raises:
        UserError: there is none, or one is below 1.
    """
    if not numbers or min(numbers) < 1:
        raise UserError(f"{flag} {numbers}: expected numbers of at least 1, such as 1..8")
    return tuple(sorted(set(numbers)))


def prompt_ids(
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    *,
    context: int | None = None,
    raw: bool = False,
) -> list[Tensor]:
    """Make the ids of every row's prompt.

    Args:
        tokenizer: The target's.
        rows: What to tokenize.
        context: The most tokens a prompt may have; None for no limit.
        raw: Whether texts are taken as they stand, without the chat template.

    Raises:
        UserError: naming the row whose prompt cannot be used.
    """
    ids = []
    for row in rows:
        as_it_stands = raw and isinstance(row.prompt, str)
        try:
            ids.append(tokenizer.prompt(Raw(row.text) if as_it_stands else row.prompt))
        except UserError as error:
            raise UserError(f"{row.id}: {error}") from error
        _check_length(row, len(ids[-1]), context, tokenizer.name)
    return ids


def check_fit(model: TransformersModel, rows: Sequence[Row], examples: Sequence[Example]) -> None:
    """Check that a model's context holds every example whole.

    Raises:
        UserError: naming the row that is too long.
    """
    for row, example in zip(rows, examples, strict=True):
        length = len(example.prompt)
        if example.completion is not None:
            fed = len(example.completion) - 1  # the last token is predicted and never fed
            apart = model.tokenizer.encoder_decoder
            length = max(length, fed) if apart else length + fed
        _check_length(row, length, model.context, model.name)


def _check_length(row: Row, length: int, context: int | None, name: str) -> None:
    if context is not None and length > context:
        raise UserError(
            f"{row.id}: {length} tokens, more than the context of {context} of {name}; shorten "
            "the row, or leave it out"
        )


def examples(tokenizer: Tokenizer, rows: Sequence[Row], *, raw: bool = False) -> list[Example]:
    """Make training examples, with a completion where the row has a target.

    Args:
        tokenizer: The model's.
        rows: What to tokenize.
        raw: As for `prompt_ids`.

    Raises:
        UserError: naming the row whose prompt or ids cannot be used.
    """
    prompts = prompt_ids(tokenizer, rows, raw=raw)
    return [
        Example(prompt, _completion(tokenizer, row))
        for prompt, row in zip(prompts, rows, strict=True)
    ]


def _completion(tokenizer: Tokenizer, row: Row) -> Tensor | None:
    if row.target_ids is not None:
        if max(row.target_ids) >= tokenizer.vocabulary.size:
            raise UserError(
                f"{row.id}: target_ids has {max(row.target_ids)}, and {tokenizer.name} knows ids "
                f"below {tokenizer.vocabulary.size}: the file was made with another tokenizer"
            )
        return torch.tensor(row.target_ids)
    return None if row.target is None else ids_of_text(tokenizer, row.target, cut=row.cut)


def ids_of_text(tokenizer: Tokenizer, text: str, *, cut: bool) -> Tensor:
    """Make the ids of an answer of which the text alone is known; one that was cut has no end."""
    ids = tokenizer.completion(text)
    return ids[:-1] if cut and len(ids) > 1 else ids
