"""Synthetic runs for the report's tests: numbers as a run would write them, made up here."""

from __future__ import annotations

import math
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
