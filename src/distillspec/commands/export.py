"""`export`: a draft as the engines that serve it want it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from distillspec.commands.card import card, read_measured, read_trained, same_draft
from distillspec.commands.pairs import at_least, dtype_of
from distillspec.commands.progress import console
from distillspec.commands.serve_lines import ENGINES, Pair, as_markdown, serve_lines
from distillspec.commands.serving_settings import Export
from distillspec.errors import UserError, nearest
from distillspec.models import load, load_tokenizer
from distillspec.models.exporting import (
    MOST_DROPPED,
    Exported,
    Shape,
    export_draft,
    shape_of,
)
from distillspec.models.loading import check_kinds
from distillspec.models.vocabulary import check_same
from distillspec.training import checkpoint

MEASURED = {"ratio": "ratio", "argmax": "argmax draft", "exact-match": "exact match"}
"""What `measure` calls each rule at a temperature above 0; at 0 all are greedy."""


def run(settings: Export) -> dict[str, Any]:
    """Write the folder, whole or not at all."""
    for name in settings.engine:
        if name not in ENGINES:
            raise UserError(f"--engine {name}: {nearest(name, ENGINES)}")
    _make_way(settings.out)
    measured = (
        None if settings.measured is None else read_measured(settings.measured, settings.draft)
    )
    trained = None if settings.trained is None else read_trained(settings.trained)
    gamma = _gamma(settings, measured)
    tokenizer, shape = load_tokenizer(settings.target), shape_of(settings.target)
    engines = _engines(settings, encoder_decoder=shape.encoder_decoder)
    console().print(f"loading {settings.draft}")
    draft = load(settings.draft, dtype=dtype_of("auto"))
    names = (settings.target, settings.draft)
    check_same(tokenizer.vocabulary, draft.tokenizer.vocabulary, names=names)
    own = shape_of(settings.draft)
    check_kinds(shape.encoder_decoder, own.encoder_decoder, names=names)
    with checkpoint.whole(settings.out, owner_of(settings.out)) as partial:
        exported = export_draft(
            draft,
            partial,
            tokenizer=tokenizer,
            shape=shape,
            dtype=dtype_of(settings.dtype),
            gamma=gamma,
        )
        pair = _pair(settings, gamma, exported, own, shape)
        lines = serve_lines(pair)
        chosen = {name: lines[name] for name in engines}
        _write(partial / "serve.md", as_markdown(pair, chosen))
        _write(partial / "serve.json", json.dumps(chosen, indent=2, ensure_ascii=False) + "\n")
        text = card(settings.target, settings.draft, gamma, exported, measured, trained)
        _write(partial / "README.md", text)
    templates = (draft.tokenizer.hf.chat_template, tokenizer.hf.chat_template)
    return {
        "out": str(settings.out),
        "gamma": gamma,
        **dataclasses.asdict(exported),
        "serve": chosen,
        "measured": measured is not None,
        "warnings": [
            *_of_sources(settings, measured),
            *_of_prompts_and_rule(settings, templates, measured),
            *_of_sizes(exported, own, shape),
        ],
    }


def owner_of(out: Path) -> str:
    """Return by what an export's own leftovers are told from those of others beside it."""
    return f"export-{sha256(out.name.encode()).hexdigest()[:12]}"


def _gamma(settings: Export, measured: Mapping[str, Any] | None) -> int:
    """Return γ as it is given, or the best of what was measured.

    Raises:
        UserError: there is neither, or it is below 1.
    """
    gamma = settings.gamma
    if gamma is None:
        if measured is None:
            raise UserError("--gamma is missing; give it, or --measured, whose best γ is taken")
        gamma = int(measured["best_gamma"])
    at_least(1, dataclasses.replace(settings, gamma=gamma), "gamma")
    return gamma


def _pair(settings: Export, gamma: int, exported: Exported, own: Shape, target: Shape) -> Pair:
    contexts = [one.context for one in (own, target) if one.context is not None]
    return Pair(
        target=settings.target,
        draft=str(settings.out),
        gamma=gamma,
        rule=settings.rule,
        context=min(contexts, default=None),
        dtype=exported.dtype,
        target_dtype=target.dtype,
        target_layers=target.layers,
        encoder_decoder=target.encoder_decoder,
    )


def _engines(settings: Export, *, encoder_decoder: bool) -> tuple[str, ...]:
    """Return the engines to write lines for: those asked for, or all that can serve the pair."""
    if not encoder_decoder:
        return settings.engine or ENGINES
    unable = [name for name in settings.engine if name != "transformers"]
    if unable:
        raise UserError(
            f"--engine {unable[0]}: {settings.target} is an encoder-decoder, which transformers "
            "alone serves with a draft; give --engine transformers"
        )
    return ("transformers",)


def _of_sources(settings: Export, measured: Mapping[str, Any] | None) -> list[str]:
    """Warn where the card tells of another draft, as far as names can tell."""
    found = []
    of = None if measured is None else measured.get("draft")
    if of is not None and not same_draft(settings.draft, of):
        found.append(
            f"--measured is of the draft {of}, and {settings.draft} is exported: "
            "the card has the figures of that one, and γ is its best unless --gamma gives one"
        )
    if settings.trained is not None:
        made = settings.trained / "draft"
        if made.resolve() != Path(settings.draft).resolve():
            found.append(
                f"--trained made {made}, and {settings.draft} is exported: the card tells how that "
                "one was trained"
            )
    return found


def _of_prompts_and_rule(
    settings: Export, templates: tuple[object, object], measured: Mapping[str, Any] | None
) -> list[str]:
    """Warn of a draft that was trained on other prompts, or measured by another rule."""
    found = []
    if templates[0] != templates[1]:
        found.append(
            "the draft's chat template was not the target's: the target's is written, and a draft "
            "that was trained on other prompts than it is served with accepts less"
        )
    if measured is not None and measured["rule"] not in (MEASURED[settings.rule], "greedy"):
        found.append(
            f"what was measured is of the rule {measured['rule']}, and the pair is to be served by "
            f"{settings.rule}: acceptance is another; measure by the one, or export with the other"
        )
    return found


def _of_sizes(exported: Exported, own: Shape, target: Shape) -> list[str]:
    """Warn of a draft with fewer positions than its target, or of ids that trimming left out."""
    found = []
    if own.context is not None and own.context < (target.context or own.context + 1):
        found.append(
            f"the draft has positions for {own.context} tokens, fewer than the target: past them "
            "it drafts nothing, or nonsense; limit the served length"
        )
    if exported.dropped_mass is not None and exported.dropped_mass > MOST_DROPPED:
        found.append(
            f"the whole head gives {exported.dropped_mass:.2f} of the probability to ids that "
            "trimming left out, and as much is lost of acceptance: export a draft with a whole head"
        )
    return found


def _make_way(out: Path) -> None:
    """Refuse what cannot become the folder; an empty one makes way."""
    try:
        if out.is_dir() and not any(out.iterdir()):
            out.rmdir()
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror}") from error
    if out.exists():
        raise UserError(f"--out {out}: exists and is not an empty folder; give a new one")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def tell(result: dict[str, Any]) -> str:
    """Say what was written and how to serve it."""
    lines = [
        f"{result['out']}: {result['parameters'] / 1e6:.1f}M parameters, {result['dtype']}, "
        f"{result['rows']} rows"
    ]
    if result["kept"] is not None:
        lines.append(
            f"the head, trimmed to {result['kept']:,} ids, is whole; the others have "
            f"{result['dropped_mass']:.2g} of the probability"
        )
    lines += [f"warning: {one}" for one in result["warnings"]]
    for name, engine in result["serve"].items():
        lines.append(f"{name} ({engine['rule']}):")
        lines += [f"    {line}" for command in engine["commands"] for line in command.splitlines()]
    lines.append(
        f"{result['out']}/serve.md has these lines and what to know of each engine; "
        "distillspec check-export says whether the pair does there what was promised"
    )
    return "\n".join(lines)
