"""A model card that says what was measured, and of what was not, that it was not."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distillspec.commands.tables import interval
from distillspec.errors import UserError
from distillspec.models.exporting import Exported
from distillspec.studies.store import read_run


def read_measured(path: Path, draft: str) -> dict[str, Any]:
    """Read a stored measurement: a run directory of `measure`, or the JSON that it prints.

    Of several drafts' the one of `draft` is returned, as its path ends like the name it has there.

    Raises:
        UserError: it is neither, or of several drafts and not of this one.
    """
    about: dict[str, Any] = {}
    if path.is_dir():
        run = read_run(path)
        found: Any = run.result
        about = {"command": run.record["command"], "started": run.record["started"]}
        about["versions"] = run.record["versions"]
    else:
        try:
            found = json.loads(path.read_text(encoding="utf-8").strip().splitlines()[-1])
        except (OSError, ValueError, IndexError) as error:
            raise UserError(f"--measured {path}: cannot be read as JSON: {error}") from error
    keys = {"alpha", "rule", "temperature", "prompts", "tokens", "gammas", "best_gamma"}
    if not isinstance(found, Mapping) or not keys <= set(found):
        raise UserError(
            f"--measured {path}: no measurement of one draft: give the --out of `measure`, or the "
            "JSON line that it prints"
        )
    several = {one["draft"]: one for one in found.get("drafts", ())}
    if several:
        mine = [one for name, one in several.items() if same_draft(draft, name)]
        if len(mine) != 1:
            raise UserError(
                f"--measured {path}: of the drafts {', '.join(several)}, and {draft} is none of "
                "them; give a measurement of this one"
            )
        found = {**found, **mine[0]}
    return {**found, **about}


def same_draft(path: str, name: str) -> bool:
    """Tell whether a path is, or ends with, what `measure` called a draft by."""
    parts = Path(name).parts
    return Path(path).parts[-len(parts) :] == parts or Path(path).resolve() == Path(name).resolve()


def read_trained(path: Path) -> dict[str, Any]:
    """Read how a draft was trained from the run directory of `sft` or `distill`.

    Raises:
        UserError: it is none.
    """
    run = read_run(path)
    if run.record["verb"] not in ("sft", "distill"):
        raise UserError(f"--trained {path}: a run of {run.record['verb']}, not of sft or distill")
    return {
        "verb": run.record["verb"],
        "config": run.record["config"],
        "command": run.record["command"],
        "versions": run.record["versions"],
        "result": run.result,
    }


def card(
    target: str,
    draft: str,
    gamma: int,
    exported: Exported,
    measured: Mapping[str, Any] | None,
    trained: Mapping[str, Any] | None,
) -> str:
    """Write the README.md of an exported draft."""
    parts = [
        "---",
        "library_name: transformers",
        f"base_model: {json.dumps(target)}",
        "tags: [speculative-decoding, draft-model, distillspec]",
        "---",
        "",
        f"# A draft for {target}",
        "",
        f"Made from `{draft}` by `distillspec export`. It writes tokens ahead of its target, which "
        "verifies them; alone it is a poor language model. How to serve the pair: `serve.md`.",
        "",
        f"- {exported.parameters:,} parameters, {exported.dtype}, output and input embedding "
        f"{'tied' if exported.tied else 'not tied'}",
        f"- {exported.rows:,} rows, as the target's; the draft had {exported.rows_before:,}",
        *_head(exported),
        "- tokenizer and chat template: the target's",
        "",
        "## Measured",
        "",
        *_measured(gamma, measured),
        "",
        "## Trained",
        "",
        *_trained(trained),
        "",
    ]
    return "\n".join(parts)


def _head(exported: Exported) -> list[str]:
    if exported.kept is None:
        return []
    return [
        f"- the head was trimmed to {exported.kept:,} ids and is whole here, its other rows 0: on "
        f"a short text they take {exported.dropped_mass:.2g} of the probability. What was measured "
        "on the trimmed draft holds as far as that is little"
    ]


def _measured(gamma: int, measured: Mapping[str, Any] | None) -> list[str]:
    if measured is None:
        return ["Nothing: export was given no measurement (`--measured`)."]
    alpha = measured["alpha"]
    sampler = f"T = {measured['temperature']:g}"
    row = next((row for row in measured["gammas"] if row["gamma"] == gamma), None)
    lines = [
        f"- α {interval(alpha, 3)}; rule: {measured['rule']}; {sampler}; "
        f"{measured['prompts']} prompts, {measured['tokens']} tokens",
    ]
    if row is None:
        lines.append(f"- τ at γ = {gamma}: not measured")
    else:
        lines.append(f"- τ at γ = {gamma}, exact forecast: {interval(row['tau_forecast'], 3)}")
        for key, name in (
            ("tau_counted", "τ counted"),
            ("speedup_measured", "speed-up on the clock, in our own engine"),
        ):
            said = interval(row[key], 3) if key in row else "not measured"
            lines.append(f"- {name} at γ = {gamma}: {said}")
    for key, name in (("target", "target"), ("draft", "draft"), ("command", "command")):
        if key in measured:
            value = measured[key]
            text = shlex.join(value) if isinstance(value, list) else str(value)
            lines.append(f"- {name}: `{text}`")
    return lines


def _trained(trained: Mapping[str, Any] | None) -> list[str]:
    if trained is None:
        return ["Not recorded: export was given no training run (`--trained`)."]
    config, result = trained["config"], trained["result"] or {}
    shown = ["recipe", "divergence", "prompts", "target", "rule", "temperature", "optimizer"]
    lines = [f"- {trained['verb']}"]
    lines += [f"- {key}: `{config[key]}`" for key in shown if config.get(key) is not None]
    lines += [f"- {key}: {result[key]}" for key in ("steps", "tokens") if key in result]
    if "sources" in result:
        steps = ", ".join(f"{name} {count}" for name, count in result["sources"].items())
        lines.append(f"- steps by source of data: {steps}")
    command = shlex.join(trained["command"])
    return [*lines, f"- command: `{command}`"]
