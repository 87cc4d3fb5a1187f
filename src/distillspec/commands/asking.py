"""Ask the engine that serves a pair: in this process, by its URL, or by what it left in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from distillspec.commands import llama_cpp
from distillspec.commands.engine_files import by_file
from distillspec.commands.engines import by_server, by_transformers, template_differs
from distillspec.commands.progress import bar, console
from distillspec.commands.served import Answer, Server, ask_completion
from distillspec.commands.served_model import ServedModel, check_tokenizer, find_model
from distillspec.commands.serving_settings import CheckExport
from distillspec.errors import UserError
from distillspec.math.sampling import Sampling
from distillspec.models.adapter import TransformersModel
from distillspec.models.seeds import row_seed
from distillspec.studies.serving import Answered
from distillspec.tasks import Row


@dataclass(frozen=True)
class Engine:
    """What came of asking an engine."""

    prompts: Sequence[Tensor]
    """As it was given them."""
    plain: list[Answered] | None
    """Its answers without the draft; None where it was not asked for them."""
    drafted: list[Answered]
    """Those with the draft."""
    template_differs: bool | None
    """Whether it renders prompts otherwise than the target; None where that is not known."""


def check_engine(settings: CheckExport) -> None:
    """Refuse flags of one engine with another.

    Raises:
        UserError: naming the flag.
    """
    served, written = settings.engine in ("vllm", "llama.cpp"), settings.engine == "outputs"
    if (settings.url is not None) != served:
        raise UserError(
            "--url goes with --engine vllm and --engine llama.cpp: the URL of the server, ending "
            "in /v1"
        )
    if settings.url_plain is not None and not served:
        raise UserError("--url-plain goes with --url: a server of the same engine, no draft")
    if (settings.outputs is not None) != written:
        raise UserError("--outputs goes with --engine outputs: the file of what an engine did")
    if settings.outputs_plain is not None and not written:
        raise UserError("--outputs-plain goes with --engine outputs and --outputs")
    plain = {"transformers": "", "outputs": settings.outputs_plain}.get(
        settings.engine, settings.url_plain
    )
    if settings.min_speedup is not None and plain is None:
        flag = "--outputs-plain" if written else "--url-plain"
        raise UserError(f"--min-speedup needs the engine without the draft too: give {flag}")


def ask_engine(
    settings: CheckExport,
    target: TransformersModel,
    draft: TransformersModel,
    rows: Sequence[Row],
    prompts: Sequence[Tensor],
    sampling: Sampling,
    *,
    gamma: int,
) -> Engine:
    """Have the engine answer every prompt with the draft, and without where it can.

    Raises:
        UserError: the engine is set otherwise than the flags say, or is not the pair's.
    """
    if settings.outputs is not None:
        return _from_files(settings, settings.outputs, target, rows, prompts)
    if settings.url is not None:
        return _from_server(settings, settings.url, target, rows, prompts, sampling, gamma)
    _assistant(draft, gamma)
    with bar("transformers") as report:
        plain, drafted = by_transformers(
            target, draft, prompts, sampling, settings.max_new_tokens, settings.seed, report
        )
    return Engine(prompts, plain, drafted, None)


def _from_files(
    settings: CheckExport,
    outputs: str,
    target: TransformersModel,
    rows: Sequence[Row],
    prompts: Sequence[Tensor],
) -> Engine:
    size = target.tokenizer.vocabulary.size
    given, drafted = by_file("--outputs", outputs, rows, prompts, size=size)
    check_room(
        target.name,
        target.context,
        max(longest(target, [p], len(one.ids)) for p, one in zip(given, drafted, strict=True)),
    )
    plain = None
    if settings.outputs_plain is not None:
        asked, plain = by_file("--outputs-plain", settings.outputs_plain, rows, given, size=size)
        if not _same(asked, given):
            raise UserError(
                f"{settings.outputs_plain} and {outputs} have other prompt_ids: they answer other "
                "prompts"
            )
    return Engine(given, plain, drafted, not _same(given, prompts))


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def _from_server(
    settings: CheckExport,
    url: str,
    target: TransformersModel,
    rows: Sequence[Row],
    prompts: Sequence[Tensor],
    sampling: Sampling,
    gamma: int,
) -> Engine:
    """Ask one prompt after another; without the draft too, in turn, where such a server is."""
    plain = [] if settings.url_plain is None else [Server(settings.url_plain, settings.timeout)]
    servers = [*plain, Server(url, settings.timeout)]  # the one with the draft is the last
    models = [_served(server, settings, target, prompts) for server in servers]
    differs = (
        llama_cpp.template_differs(servers[-1], target.tokenizer)
        if settings.engine == "llama.cpp"
        else template_differs(servers[-1], models[-1], target.tokenizer)
    )
    found: list[list[Answered]] = [[] for _ in servers]
    with bar(settings.engine) as report:
        for i, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
            for k, (server, model) in enumerate(zip(servers, models, strict=True)):
                ask = _question(settings, model, target, prompt, sampling, i)
                for _ in range(2 if i == 0 else 1):  # the first of all is to warm up
                    one = by_server(
                        server,
                        ask,
                        target.tokenizer,
                        target.eos_ids,
                        row.id,
                        gamma=gamma if k == len(servers) - 1 else None,
                    )
                found[k].append(one)
            report(i + 1, len(prompts))
    return Engine(prompts, found[0] if plain else None, found[-1], differs)


def _served(
    server: Server, settings: CheckExport, target: TransformersModel, prompts: Sequence[Tensor]
) -> ServedModel:
    """Find the target at a server, and check what can be checked of it.

    Raises:
        UserError: it is not there, or is another, or has too little room.
    """
    model = find_model(server, settings.model, settings.target)
    if settings.engine == "vllm":
        check_tokenizer(server, model, target.tokenizer)
    console().print(f"{server.url} serves {model.name}")
    length = longest(target, prompts, settings.max_new_tokens)
    check_room(f"{model.name} as served", model.context, length)
    return model


def _question(
    settings: CheckExport,
    model: ServedModel,
    target: TransformersModel,
    prompt: Tensor,
    sampling: Sampling,
    i: int,
) -> Callable[[Server], Answer]:
    """Return what asks a server for the answer to a prompt, in its engine's protocol."""
    seed, limit = row_seed(settings.seed, i, bits=31), settings.max_new_tokens
    ids, name = prompt.tolist(), model.name
    if settings.engine == "llama.cpp":
        return partial(
            llama_cpp.ask_llama_cpp, prompt=ids, sampling=sampling, max_tokens=limit, seed=seed
        )
    return partial(
        ask_completion,
        model=name,
        prompt=ids,
        sampling=sampling,
        max_tokens=limit,
        seed=seed,
        stop=target.eos_ids,
    )


def exported_gamma(draft: TransformersModel) -> int:
    """Return the γ that `export` wrote where transformers looks for it.

    Raises:
        UserError: there is none.
    """
    found: int | None = getattr(draft.module.generation_config, "num_assistant_tokens", None)
    if found is None:
        raise UserError(
            f"--gamma is missing, and {draft.name} names none: give it, or a folder that export "
            "wrote"
        )
    return found


def _assistant(draft: TransformersModel, gamma: int) -> None:
    """Check that transformers will draft as asked: it reads γ from the draft's own settings.

    Raises:
        UserError: saying what is set otherwise.
    """
    own = draft.module.generation_config
    wanted = {
        "num_assistant_tokens": gamma,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0,
    }
    for name, value in wanted.items():
        found = getattr(own, name, None)
        if found != value:
            other = f"give --gamma {found}, or " if found and name == "num_assistant_tokens" else ""
            raise UserError(
                f"{draft.name}: its generation_config.json has {name} {found}, and {value} is "
                f"needed: {other}export it with --gamma {gamma}"
            )


def longest(target: TransformersModel, prompts: Sequence[Tensor], tokens: int) -> int:
    """Return the most tokens that a row may hold; a source and its answer are two rows."""
    most = max(map(len, prompts))
    return max(most, tokens) if target.tokenizer.encoder_decoder else most + tokens


def check_room(name: str, context: int | None, length: int) -> None:
    """Refuse answers that could outgrow the target's context: engines differ in what they do then.

    Raises:
        UserError: naming the target and both lengths.
    """
    if context is not None and length > context:
        raise UserError(
            f"{name} has {context} tokens of context, and prompts with answers reach {length}: "
            "lower --max-new-tokens, or give shorter prompts"
        )
