"""Measurements as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distillspec.studies.estimates import Estimate


def table(result: Mapping[str, Any]) -> str:
    """Write a measurement as text: its cost, and a line per γ."""
    cost, alpha = result["cost"], result["alpha"]
    lines = [
        f"α {interval(alpha)} ({result['alpha_estimator']}; rule: {result['rule']}, "
        f"T = {result['temperature']:g}, {result['prompts']} prompts, {result['tokens']} tokens)",
        f"target {cost['target_ms']:.1f} ms, draft {cost['draft_ms']:.1f} ms, "
        f"overhead {cost['overhead_ms']:.1f} ms, c {cost['c']:.3f}; headroom "
        f"{result['headroom']:.2f}×",
        f"{'γ':>3}  {'τ forecast':<20} {'τ counted':<20} {'speed-up forecast':<20} measured",
    ]
    for row in result["gammas"]:
        cells = [
            interval(row[key]) if key in row else ""
            for key in ("tau_forecast", "tau_counted", "speedup_forecast", "speedup_measured")
        ]
        lines.append(f"{row['gamma']:>3}  " + " ".join(f"{cell:<20}" for cell in cells).rstrip())
    return "\n".join(lines)


def difference(other: Mapping[str, Any]) -> str:
    """Write one draft against another as a line."""
    alpha, tau = other["alpha_difference"], other["tau_difference"]
    return (
        f"{other['draft']} against {other['against']}, paired: Δα {interval(alpha, 3, '+')}, "
        f"Δτ {interval(tau, 3, '+')} at γ = {other['gamma']}; τ better on {other['improved']} "
        f"prompts, worse on {other['worsened']}"
    )


def interval(value: Estimate | Mapping[str, float], digits: int = 2, sign: str = "") -> str:
    """Write an estimate with its interval; `sign` "+" shows that of positive numbers too."""
    low, high = (f"{value[end]:{sign}.{digits}f}" for end in ("low", "high"))
    return f"{value['value']:{sign}.{digits}f} [{low}, {high}]"
