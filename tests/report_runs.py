"""Synthetic runs for the report's tests: numbers as a run would write them, made up here."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distillspec.studies.store import Run


def estimate(value: float, half_width: float) -> dict[str, float]:
    return {"value": value, "low": value - half_width, "high": value + half_width}


def measurement(alpha: float, temperature: float = 1.0, *, ran: bool = True) -> dict[str, Any]:
    """A `measure` result as docs describe it, with more keys than the report knows."""
    gammas = []
    for gamma in range(1, 9):
        tau = (1 - alpha ** (gamma + 1)) / (1 - alpha)
        row: dict[str, Any] = {
            "gamma": gamma,
            "tau_forecast": estimate(tau, 0.06),
            "tau_iid": tau * 0.97,
            "speedup_forecast": estimate(tau / (1.05 + 0.12 * gamma), 0.05),
        }
        if ran and gamma == 2:
            row["tau_counted"] = estimate(tau + 0.03, 0.09)
            row["speedup_measured"] = estimate(tau / (1.08 + 0.12 * gamma), 0.06)
            row["speedup_end_to_end"] = estimate(1.0, 0.1)
            row["forecast_z"] = 0.8
            row["forecast_exact"] = False
        gammas.append(row)
    return {
        "alpha": estimate(alpha, 0.02),
        "rule": "ratio",
        "temperature": temperature,
        "prompts": 48,
        "tokens": 3072,
        "gammas": gammas,
        "cost": {"target_ms": 50.0, "draft_ms": 6.0, "overhead_ms": 2.0, "c": 0.12},
        "best_gamma": 2,
        "break_even_alpha": 0.19,
        "headroom": 2.4,
        "verdict": f"Use this draft with γ = 2: {1 + alpha:.2f}× [1.05, 1.30] measured.",
        "acceptance": [0.1] * 48,
    }


def log_training(run: Run, *, steps: int, start: float, end: float, evaluate: bool = False) -> None:
    for step in range(1, steps + 1):
        alpha = end + (start - end) * math.exp(-step / 120) + 0.02 * math.sin(step)
        tokens = 400 + step % 7
        run.log(
            {
                "step": step,
                "seconds": 1.5 * step,
                "loss": 3.2 - 3 * alpha,
                "alpha_sum": alpha * tokens,
                "alpha_count": tokens,
                "grad_norm": 1.0,
                "learning_rate": 3e-4,
                "tokens": tokens,
                "source": "fixed",
                "seconds_by_part": {"rollout": 0.3, "target": 0.6, "draft": 0.5},
            }
        )
        if evaluate and step % 60 == 0:
            counts = {"alpha_sum": (alpha - 0.03) * 1000, "alpha_count": 1000}
            held_out = {**counts, "tokens": 1000, "calls": 1000 / (1 + alpha), "gamma": 2}
            run.log({"step": step, "seconds": 1.5 * step, "evaluation": held_out})


def create(folder: Path, verb: str) -> Run:
    config = {"target": "models/<target>", "gamma": [1, 2, 3, 4], "minutes": 15.0}
    return Run.create(folder, verb=verb, config=config, seed=1, device="cpu")


def full_measurement(alpha: float, *, domains: Sequence[str] = ()) -> dict[str, Any]:
    """A measurement with everything that is taken today."""
    batches = [
        {
            "batch_size": size,
            "cost": {"target_ms": 50.0, "draft_ms": 6.0, "overhead_ms": 2.0, "c": 0.12 * size**0.5},
            "gammas": [
                {"gamma": gamma, "speedup_forecast": estimate(speedup_at(alpha, gamma, size), 0.04)}
                for gamma in range(1, 9)
            ],
            "best_gamma": 2,
            "break_even_alpha": None if size > 4 else 0.19 * size,
            "headroom": 2.4 / size**0.3,
        }
        for size in (1, 4, 16)
    ]
    return {
        **measurement(alpha),
        "alpha_estimator": "expected",
        "alpha_ratio": estimate(alpha + 0.004, 0.03),
        "suits": "The total variation is 1 − α of this rule: distil with it, or with JSD.",
        "alpha_needed": [
            {"speedup": 1.0, "alpha": 0.19},
            {"speedup": 1.5, "alpha": 0.71},
            {"speedup": 2.0, "alpha": None},
        ],
        "by_position": {
            "gamma": 4,
            "positions": [
                {"position": at, "judged": 900 * alpha ** (at - 1), "rate": estimate(alpha, 0.02)}
                for at in range(1, 5)
            ],
        },
        "by_context": [
            {"from": 0, "to": 63, "tokens": 500, "alpha": estimate(alpha + 0.05, 0.03)},
            {"from": 64, "to": 127, "tokens": 700, "alpha": estimate(alpha, 0.03)},
            {"from": 128, "to": 255, "tokens": 300, "alpha": estimate(alpha - 0.02, 0.05)},
        ],
        "by_domain": [
            {
                "domain": domain,
                "prompts": 12,
                "tokens": 700,
                "alpha": estimate(alpha + 0.02 * index, 0.03),
                "tau": estimate(1.5 + 0.1 * index, 0.1),
            }
            for index, domain in enumerate(domains)
        ],
        "batches": batches,
        "unmet": [],
    }


def speedup_at(alpha: float, gamma: int, size: int) -> float:
    tau = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    return tau / (1.05 + 0.12 * size**0.5 * gamma)


def compared(draft: str, against: str, domains: Sequence[str]) -> dict[str, Any]:
    return {
        "draft": draft,
        "against": against,
        "gamma": 2,
        "alpha_difference": estimate(0.11, 0.02),
        "tau_difference": estimate(0.21, 0.06),
        "speedup_difference": estimate(0.12, 0.05),
        "by_domain": [
            {
                "domain": domain,
                "prompts": 12,
                "alpha_difference": estimate(0.1, 0.03),
                "tau_difference": estimate(0.2 - 0.15 * index, 0.1),
            }
            for index, domain in enumerate(domains)
        ],
        "improved": 40,
        "worsened": 6,
        "equal": 2,
        "worse": [{"id": "p7", "domain": "code", "tau": 1.31, "tau_against": 1.52}],
    }


def example_rows(drafts: Sequence[str], prompts: int) -> list[dict[str, Any]]:
    noise = random.Random(5)
    return [
        {
            "draft": draft,
            "id": f"p{index}",
            "domain": "code" if index % 2 else "prose",
            "prompt_tokens": 40 + index,
            "tokens": 64,
            "alpha_sum": 20.0 + index % 9,
            "gamma": 2,
            "calls": 64 / (1.3 + 0.2 * drafts.index(draft) + noise.uniform(0.0, 0.5)),
        }
        for draft in drafts
        for index in range(prompts)
    ]


def output_row(
    id: str,
    pieces: Sequence[str],
    roles: str,
    *,
    setting: str = "after · γ 3",
    prompt: str = "Write a line.",
    finish_reason: str = "stop",
) -> dict[str, Any]:
    counts = {role: roles.count(role) for role in "acb"}
    return {
        "setting": setting,
        "draft": "after",
        "lenience": None,
        "id": id,
        "domain": "code",
        "prompt": prompt,
        "text": "".join(pieces),
        "pieces": list(pieces),
        "roles": roles,
        "ids": list(range(len(pieces))),
        "finish_reason": finish_reason,
        "target_calls": len(roles) - counts["a"],
        "drafted": counts["a"] + 2 * counts["c"],
        "accepted": counts["a"],
        "judged": counts["a"] + counts["c"],
        "seconds": 0.75,
    }


def evaluation() -> dict[str, Any]:
    metrics = {"rouge2": estimate(12.0, 2.0), "rougeLsum": estimate(20.0, 3.0)}
    return {
        "task": "xsum",
        "target": "models/target",
        "draft": "runs/after",
        "rule": "greedy",
        "gamma": 3,
        "temperature": 0.0,
        "dtype": "float32",
        "prompts": 24,
        "tokens": 1400,
        "quality": metrics,
        "quality_target": metrics,
        "quality_difference": {metric: estimate(0.0, 0.0) for metric in metrics},
        "alpha": estimate(0.41, 0.03),
        "tau": estimate(1.62, 0.07),
        "tau_forecast": estimate(1.62, 0.07),
        "latency": {
            "prompts": 8,
            "repetitions": 3,
            "seconds_per_prompt": estimate(1.9, 0.2),
            "seconds_per_prompt_target": estimate(2.4, 0.2),
            "speedup": estimate(1.26, 0.05),
            "speedup_end_to_end": estimate(1.2, 0.05),
            "gamma": 3,
        },
        "throughput": {
            "batch_size": 8,
            "tokens_per_second": 71.5,
            "tokens_per_second_target": 60.2,
            "ratio": 1.19,
        },
        "same_output": {"checked": 24, "identical": 23, "near_ties": 1, "different": 0},
        "by_domain": [
            {"domain": domain, "prompts": 12, "quality": metrics, "tau": estimate(tau, 0.1)}
            for domain, tau in (("news", 1.7), ("sport", 1.5))
        ],
        "verdict": "Use it: 1.26× [1.21, 1.31] on xsum, the target's own outputs.",
        "unmet": [],
    }


def trade_off() -> dict[str, Any]:
    points = []
    for shift, draft in ((0.0, "runs/raw"), (0.12, "runs/after")):
        for index, function in enumerate(("lossless", "linear", "squared", "exponential")):
            for epsilon in (1.0,) if function == "lossless" else (0.5, 0.2, 0.1):
                loss = (1 - epsilon) * 0.6 * (index + 1) ** 1.5
                gain = (1 - epsilon) * 0.05 * index
                points.append(
                    {
                        "draft": draft,
                        "lenience": function,
                        "epsilon": None if function == "lossless" else epsilon,
                        "quality": estimate(20.0 - loss, 1.0),
                        "quality_difference": estimate(-loss, 1.0),
                        "relative_latency": estimate(0.9 - shift - gain, 0.02),
                        "relative_latency_per_token": estimate(0.91 - shift - gain, 0.02),
                        "tau": estimate(1.4 + shift + gain, 0.05),
                        "empirical_acceptance": 0.5 + gain,
                    }
                )
    return {
        "task": "xsum",
        "metric": "rouge2",
        "target": "models/target",
        "gamma": 3,
        "temperature": 1.0,
        "prompts": 24,
        "baseline": {"quality": estimate(20.0, 1.0), "seconds_per_prompt": estimate(2.4, 0.1)},
        "points": points,
        "pick": {"max_loss": 5.0, "point": 12},
        "verdict": "Use after with linear 0.5: 1.3× for 2.5 % of rouge2.",
    }


def transfer_result() -> dict[str, Any]:
    cells = []
    for target in ("models/small-target", "models/large-target"):
        for task in ("gsm8k", "bbh:navigate", "bbh:date_understanding"):
            drafts = {"runs/raw": 0.3, "runs/after": 0.42}
            measured = [{**full_measurement(a), "draft": name} for name, a in drafts.items()]
            comparison = [compared("runs/after", "runs/raw", ())]
            cell = {"target": target, "task": task, "prompts": 24}
            cells.append({**cell, "measurements": measured, "comparison": comparison})
    return {
        "drafts": ["runs/raw", "runs/after"],
        "temperature": 1.0,
        "cells": cells,
        "verdict": "The distilled draft is better on 6 of 6.",
    }


HOSTILE = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\">"
"""What a model may write; it must be shown, and nothing of it may happen."""


def hostile_rows() -> list[dict[str, Any]]:
    """Outputs with every role, markup, ANSI colours, bidi overrides and a line without a blank."""
    pieces = [
        "def",
        " f",
        "(x):\n",
        "\t",
        HOSTILE,
        "\x1b[31m",
        "abc\u202edef",
        "",
        "x" * 300,
        " end",
    ]
    return [
        output_row("p1", pieces, "aacabataca", prompt=f"Say {HOSTILE} \u2066 now"),
        output_row(
            "p1",
            ["plain", " words"],
            "tt",
            setting="target alone",
            prompt=f"Say {HOSTILE} \u2066 now",
        ),
    ]
