"""Promised against served: one pair in every engine that runs here, as a table.

    python benchmarks/served.py TARGET EXPORTED PROMPTS --gamma 2 [--vllm URL] [--limit 16] …

Our own engine, transformers in this process, and a vLLM server at a URL that was started with the
line in the export's serve.md. At temperature 1 and 0: τ promised (exact forecast on the target's
own outputs), τ served (by the engine's counts), whether the counts fit the rule on the engine's
own outputs, the audit of its outputs, tokens a second.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from distillspec import cli
from distillspec.decoding import collect, speculate
from distillspec.math.sampling import Sampling
from distillspec.models import load_pair
from distillspec.studies.outputs import seeded
from distillspec.tasks import read_prompts


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("target", "draft", "prompts"):
        parser.add_argument(name)
    parser.add_argument("--gamma", type=int, required=True)
    parser.add_argument("--vllm", default=None, help="URL of a server, ending in /v1")
    parser.add_argument("--vllm-rule", default="ratio", choices=("ratio", "argmax"))
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 0.0])
    given = parser.parse_args()
    print("| engine | T | rule | τ promised | τ served | z | outputs | tokens a second |")
    print("|---|---|---|---|---|---|---|---|")
    for temperature in given.temperatures:
        own(given, temperature)
        served(given, temperature, "transformers", [], "ratio")
        if given.vllm:
            served(given, temperature, "vllm", ["--url", given.vllm], given.vllm_rule)


def own(given: argparse.Namespace, temperature: float) -> None:
    """Audit our own engine."""
    target, draft = load_pair(given.target, given.draft)
    rows = read_prompts(given.prompts, limit=given.limit)
    prompts = [target.tokenizer.prompt(row.prompt) for row in rows]
    blocks = list(
        speculate(
            target,
            draft,
            prompts,
            gamma=given.gamma,
            max_new_tokens=given.max_new_tokens,
            sampling=Sampling(temperature),
            generators=seeded(0, len(prompts)),
        )
    )
    sizes: list[list[int]] = [[] for _ in prompts]
    for block in blocks:
        for i, row in enumerate(block.rows):
            sizes[row].append(len(block.ids[i]))
    outputs = collect(blocks, len(prompts))
    lines = [
        {
            "id": row.id,
            "prompt": row.text,
            "prompt_ids": prompt.tolist(),
            "target_ids": list(one.ids),
            "finish_reason": one.finish_reason,
            "blocks": size,
        }
        for row, prompt, one, size in zip(rows, prompts, outputs, sizes, strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "own.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        flags = ["--temperature", str(temperature), "--max-new-tokens", str(given.max_new_tokens)]
        law = verb("audit", given.target, str(file), *flags)
    tokens = sum(len(one.ids) for one in outputs)
    calls = sum(one.counts.target_calls for one in outputs)
    print(f"| ours | {temperature:g} | ratio | – | {tokens / calls:.3f} | – | {told(law)} | – |")


def served(
    given: argparse.Namespace, temperature: float, engine: str, flags: list[str], rule: str
) -> None:
    """Check an engine and print its row."""
    found = verb(
        "check-export", given.draft, "--target", given.target, "--prompts", given.prompts,
        "--gamma", str(given.gamma), "--limit", str(given.limit), "--engine", engine,
        "--rule", rule, "--temperature", str(temperature), "--max-new-tokens",
        str(given.max_new_tokens), *flags,
    )  # fmt: skip
    fit = next(one for one in found["rules"] if one["rule"] == found["rule"])
    z = "exact" if fit["z"] is None and fit["fits"] else fit["z"]
    print(
        f"| {engine} | {temperature:g} | {found['rule']} | {shown(found['tau_promised'])} "
        f"| {shown(found['tau_served'])} | {z if isinstance(z, str) or z is None else f'{z:+.1f}'} "
        f"| {told(found['audit'])} | {shown(found['tokens_per_second'], 1)} |"
    )
    for cause in found["causes"]:
        print(f"  {engine}, T = {temperature:g}: {cause}", file=sys.stderr)
    if found["audit_plain"] is not None:
        rate, law = shown(found["tokens_per_second_plain"], 1), told(found["audit_plain"])
        print(f"| {engine}, no draft | {temperature:g} | – | – | 1 | – | {law} | {rate} |")


def verb(*arguments: str) -> dict[str, Any]:
    """Run a verb of the command line and return its JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = cli.main([*arguments, "--json"])
    if code not in (0, 3):
        raise SystemExit(code)
    result: dict[str, Any] = json.loads(out.getvalue().splitlines()[-1])
    return result


def told(law: dict[str, Any]) -> str:
    """Say what an audit found, in a cell."""
    passed = "not the target's" if law["rejected"] else "pass"
    if law["likelihood"] is None:
        return f"{passed} ({law['impossible']['near_ties']} near ties)"
    return f"{passed}: {shown(law['likelihood'], 3, '+')} nats"


def shown(estimate: dict[str, float], digits: int = 2, sign: str = "") -> str:
    """Write an estimate with its interval."""
    value, low, high = (f"{estimate[key]:{sign}.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


if __name__ == "__main__":
    main()
