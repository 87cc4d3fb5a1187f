"""What the engine wrote, token by token, and what is known of every prompt, ready to be stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from distillspec.decoding import Output, Role
from distillspec.models.text import TextStream, Tokenizer
from distillspec.studies.breakdown import calls
from distillspec.studies.clock import Lane
from distillspec.studies.measure import Measured
from distillspec.tasks import Row

LETTERS: dict[Role, str] = {"accepted": "a", "correction": "c", "bonus": "b", "target": "t"}
"""One letter a token."""
ALONE = "target alone"
"""What runs without a draft are called."""


def transcript(
    setting: str,
    lane: Lane | None,
    row: Row,
    output: Output,
    tokenizer: Tokenizer,
    *,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Return one row of outputs.jsonl.

    Args:
        setting: What the way it was decoded is called.
        lane: That way; None for the target alone.
        row: The prompt.
        output: What came out.
        tokenizer: The target's.
        seconds: Of decoding, where it was on the clock.
    """
    found: dict[str, Any] = {
        "setting": setting,
        "draft": None if lane is None else lane.draft,
        "lenience": None if lane is None or lane.rule.lossless else repr(lane.rule.lenience),
        "id": row.id,
        "domain": row.domain,
        "prompt": row.text,
        "text": tokenizer.decode(output.ids),
        "pieces": pieces(output.ids, tokenizer),
        "roles": "".join(LETTERS[role] for role in output.roles),
        "ids": list(output.ids),
        "finish_reason": output.finish_reason,
        "target_calls": output.counts.target_calls,
        "drafted": output.counts.drafted,
        "accepted": output.counts.accepted,
        "judged": output.counts.judged,
    }
    return found if seconds is None else {**found, "seconds": seconds}


def pieces(ids: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    """Return the text that each token completed; joined they are the whole text."""
    stream = TextStream(tokenizer)
    found = [stream.push([i]) for i in ids]
    rest = stream.finish()
    return [*found[:-1], found[-1] + rest] if found else []


def transcripts(
    measured: Measured, rows: Sequence[Row], tokenizer: Tokenizer
) -> Iterator[dict[str, Any]]:
    """Yield the rows of outputs.jsonl of every run of a race."""
    for race, row in zip(measured.races, rows, strict=False):  # the first prompts raced
        plain = race.plain
        yield transcript(ALONE, None, row, plain.output, tokenizer, seconds=plain.seconds)
        for name, run in race.runs.items():
            lane = measured.lanes[name]
            yield transcript(name, lane, row, run.output, tokenizer, seconds=run.seconds)


def examples(
    measured: Measured, rows: Sequence[Row], prompt_lengths: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of examples.jsonl: every prompt with every draft, counts and not ratios."""
    for name, finding in measured.findings.items():
        gamma = finding.result["best_gamma"]
        expected, _ = calls(finding.scores, gamma)
        for i, row in enumerate(rows):
            yield {
                "draft": name,
                "id": row.id,
                "domain": row.domain,
                "prompt_tokens": int(prompt_lengths[i]),
                "tokens": int(finding.scores.lengths[i]),
                "alpha_sum": float(finding.scores.alpha_sums[i]),
                "gamma": gamma,
                "calls": float(expected[i]),
            }
