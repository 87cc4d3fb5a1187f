"""Drafts beside one another on the same target outputs: stored differences, prompt by prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from distillspec.report.reading import Interval, interval, maybe, reading, text_or_none
from distillspec.studies.store import EXAMPLES, StoredRun


class DomainDifference(NamedTuple):
    """One draft against another on the prompts of one domain."""

    name: str
    """The domain."""
    prompts: int
    """Its prompts."""
    alpha: Interval
    """Paired difference in α."""
    tau: Interval
    """Paired difference in τ."""


class Worse(NamedTuple):
    """A prompt on which the draft does worse than the one it is held against."""

    id: str
    """The row's id."""
    domain: str | None
    """Its domain."""
    tau: float
    """Block efficiency of the draft."""
    tau_against: float
    """Block efficiency of the other."""


class Comparison(NamedTuple):
    """One draft against another, first minus second, paired over prompts."""

    draft: str
    """The draft."""
    against: str
    """What it is held against."""
    gamma: int | None
    """The γ of the differences in τ; None where an earlier version did not say."""
    temperature: float | None
    """Of the target's sampling, where it differs within the run."""
    alpha: Interval
    """Difference in α."""
    tau: Interval
    """Difference in τ."""
    speedup: Interval | None
    """Difference in measured speed-up; None where not both ran."""
    counts: tuple[int, int, int] | None
    """Prompts improved, worsened and equal, where they were counted."""
    domains: tuple[DomainDifference, ...]
    """By domain."""
    worse: tuple[Worse, ...]
    """Prompts that got worse, worst first."""


class Examples(NamedTuple):
    """Block efficiency of one draft, prompt by prompt."""

    draft: str
    """The draft."""
    gamma: int
    """Drafted tokens per block."""
    taus: Mapping[str, float]
    """Tokens over expected target calls, by row id."""


def comparisons(run: StoredRun) -> list[Comparison]:
    """Read the paired differences of a run: between the drafts of `measure`, or a demo's stages.

    Raises:
        UserError: a field is missing or of another form.
    """
    result = run.result or {}
    path = run.folder / "result.json"
    stored = result.get("comparison")
    if stored is None:
        return []
    if "after" not in result:
        return [comparison(one, path, f"comparison.{i}.") for i, one in enumerate(stored)]
    with reading(path, "comparison.", "a demo's, it is damaged", "run the demo again"):
        return [
            Comparison(
                draft="after",
                against="control",
                gamma=None,
                temperature=float(one["temperature"]),
                alpha=interval(stored["alpha_difference"][index]),
                tau=interval(stored["tau_difference"][index]),
                speedup=None,
                counts=None,
                domains=(),
                worse=(),
            )
            for index, one in enumerate(result["after"])
        ]


def comparison(value: Mapping[str, Any], path: Path, prefix: str) -> Comparison:
    """Read one stored comparison.

    Args:
        value: As `measure` or `transfer` stored it.
        path: The file it is from, for errors.
        prefix: Where in that file.

    Raises:
        UserError: a field is missing or of another form.
    """
    with reading(path, prefix, "a comparison", "measure again"):
        return Comparison(
            draft=str(value["draft"]),
            against=str(value["against"]),
            gamma=int(value["gamma"]),
            temperature=None,
            alpha=interval(value["alpha_difference"]),
            tau=interval(value["tau_difference"]),
            speedup=maybe(value.get("speedup_difference")),
            counts=(int(value["improved"]), int(value["worsened"]), int(value["equal"])),
            domains=tuple(
                DomainDifference(
                    name=str(one["domain"]),
                    prompts=int(one["prompts"]),
                    alpha=interval(one["alpha_difference"]),
                    tau=interval(one["tau_difference"]),
                )
                for one in value.get("by_domain") or []
            ),
            worse=tuple(
                Worse(
                    id=str(one["id"]),
                    domain=text_or_none(one.get("domain")),
                    tau=float(one["tau"]),
                    tau_against=float(one["tau_against"]),
                )
                for one in value.get("worse") or []
            ),
        )


def examples(run: StoredRun) -> list[Examples]:
    """Read τ of every prompt, one list per draft and γ; none of a transfer, whose tasks differ.

    Raises:
        UserError: the file is damaged, or a row of it lacks a field.
    """
    found: dict[tuple[str, int], dict[str, float]] = {}
    path = run.folder / EXAMPLES
    for index, row in enumerate(run.rows(EXAMPLES), start=1):
        if "task" in row:
            continue
        with reading(path, f"row {index}: ", "of `measure`", "measure again"):
            taus = found.setdefault((str(row["draft"]), int(row["gamma"])), {})
            taus[str(row["id"])] = float(row["tokens"]) / float(row["calls"])
    return [Examples(draft, gamma, taus) for (draft, gamma), taus in found.items()]


def ids_of(found: Iterable[Examples]) -> list[str]:
    """List the row ids of all examples, each once, in the order they were stored."""
    return list(dict.fromkeys(id for one in found for id in one.taus))
