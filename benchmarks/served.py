"""Promised against served: one pair in every engine that runs here, as a table.

    python benchmarks/served.py TARGET EXPORTED PROMPTS --gamma 2 --out runs/served
    python benchmarks/served.py … --here --vllm URL URL_WITHOUT_DRAFT
    python benchmarks/served.py … --here --outputs openvino=WITH,WITHOUT --temperatures 1

Our own engine and transformers in this process, servers by their URLs, and what engines that run
elsewhere left in files (examples/engines). Every row is what `check-export` says, kept in --out,
and a call prints all rows that are there, so that engines may be asked one after another: τ
promised (exact forecast on the target's own outputs), τ served (by the engine's counts), how well
the counts fit the rule on the engine's own outputs, the audit of these, tokens a second.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from distillspec import cli
from distillspec.commands.tables import interval
from distillspec.decoding import complete
from distillspec.math.sampling import Sampling
from distillspec.models import load_pair
from distillspec.studies.outputs import seeded
from distillspec.tasks import read_prompts

HERE = ("ours", "transformers")


def main() -> None:
    """Check what is asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("target", "draft", "prompts"):
        parser.add_argument(name)
    parser.add_argument("--gamma", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder that keeps the rows")
    parser.add_argument("--here", nargs="*", default=HERE, choices=HERE)
    for name in ("vllm", "llama.cpp"):
        parser.add_argument(f"--{name}", nargs="+", metavar="URL", help="with, and without draft")
    parser.add_argument("--outputs", nargs="+", default=[], metavar="NAME=FILE[,FILE]")
    parser.add_argument("--rule", default="ratio", help="of servers and files")
    parser.add_argument("--as", dest="label", default="", help="added to the names of rows")
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperatures", type=float, nargs="*", default=[1.0, 0.0])
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for temperature in given.temperatures:
        for name, flags in engines(given, temperature).items():
            keep(given, temperature, name + given.label, flags)
    table(given.out)


def engines(given: argparse.Namespace, temperature: float) -> dict[str, list[str]]:
    """Return the flags of `check-export` for each row that is asked for."""
    rule, found = ["--rule", given.rule], {}
    if "ours" in given.here:
        files = [str(ours(given, temperature, drafts=drafts)) for drafts in (True, False)]
        found["ours"] = ["--engine", "outputs", "--outputs", files[0], "--outputs-plain", files[1]]
    if "transformers" in given.here:
        found["transformers"] = ["--engine", "transformers"]
    for name in ("vllm", "llama.cpp"):
        urls = getattr(given, name)
        if urls:
            flags = [["--url", urls[0]], *(["--url-plain", url] for url in urls[1:])]
            found[name] = ["--engine", name, *rule, *sum(flags, [])]
            found[name] += ["--model", given.target]
    for one in given.outputs:
        name, _, files = one.partition("=")
        both = zip(("--outputs", "--outputs-plain"), files.split(","), strict=False)
        found[name] = ["--engine", "outputs", *rule, *(part for pair in both for part in pair)]
    return found


def ours(given: argparse.Namespace, temperature: float, *, drafts: bool) -> Path:
    """Let our own engine answer each prompt by itself, and write what it did."""
    target, draft = load_pair(given.target, given.draft)
    rows = read_prompts(given.prompts, limit=given.limit)
    file = given.out / f"ours-{temperature:g}-{'with' if drafts else 'without'}.jsonl"
    lines = []
    for row, generator in zip(rows, seeded(0, len(rows)), strict=True):
        prompt = target.tokenizer.prompt(row.prompt)
        start = time.perf_counter()
        (one,) = complete(
            target,
            draft if drafts else None,
            [prompt],
            gamma=given.gamma if drafts else 0,
            max_new_tokens=given.max_new_tokens,
            sampling=Sampling(temperature),
            generators=[generator],
        )
        counts = {
            "calls": one.counts.target_calls,
            "drafted": one.counts.drafted,
            "accepted": one.counts.accepted,
            "seconds": time.perf_counter() - start,
            "alone": 0,
        }
        asked = {"prompt": row.prompt} if isinstance(row.prompt, str) else {"messages": row.prompt}
        answer = {"target_ids": list(one.ids), "finish_reason": one.finish_reason}
        line = {"id": row.id, **asked, "prompt_ids": prompt.tolist(), **answer, "counts": counts}
        lines.append(json.dumps(line) + "\n")
    file.write_text("".join(lines), encoding="utf-8")
    return file


def keep(given: argparse.Namespace, temperature: float, name: str, flags: list[str]) -> None:
    """Check an engine and keep its row, or why there is none."""
    out, err = io.StringIO(), io.StringIO()
    arguments = [
        "check-export", given.draft, "--target", given.target, "--prompts", given.prompts,
        "--gamma", str(given.gamma), "--limit", str(given.limit), "--temperature",
        str(temperature), "--max-new-tokens", str(given.max_new_tokens), "--json", *flags,
    ]  # fmt: skip
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(arguments)
    if code in (0, 3):
        row = json.loads(out.getvalue().splitlines()[-1])
    else:
        row = {"failed": (err.getvalue().strip().splitlines() or [f"exit code {code}"])[-1]}
    row |= {"name": name, "temperature": temperature, "command": arguments}
    slug = re.sub(r"[^\w.]+", "-", name)
    (given.out / f"{slug}-{temperature:g}.json").write_text(json.dumps(row), encoding="utf-8")


def table(folder: Path) -> None:
    """Print every row that is kept, and what explains the differences."""
    rows = [json.loads(file.read_text("utf-8")) for file in sorted(folder.glob("*.json"))]
    print("| engine | T | rule | τ promised | τ served | z | outputs | tokens a second |")
    print("|---|---|---|---|---|---|---|---|")
    for row in sorted(rows, key=lambda row: (-row["temperature"], row["name"])):
        head = f"| {row['name']} | {row['temperature']:g} |"
        if "failed" in row:
            print(f"{head} – | – | – | – | not checked: {row['failed']} | – |")
            continue
        fit = next(one for one in row["rules"] if one["rule"] == row["rule"])
        # A rule that leaves nothing to chance has 0 where the counts agree, None where they differ
        counts = "exact" if fit["z"] == 0 else "near ties" if fit["fits"] else "not exact"
        z = f"{fit['z']:+.1f}" if fit["z"] else counts
        print(
            f"{head} {row['rule']} | {interval(row['tau_promised'])} "
            f"| {interval(row['tau_served'])} | {z} | {told(row['audit'])} "
            f"| {interval(row['tokens_per_second'], 1)} |"
        )
        if row["audit_plain"] is not None:
            speed, law = interval(row["tokens_per_second_plain"], 1), told(row["audit_plain"])
            print(
                f"| {row['name']}, no draft | {row['temperature']:g} | – | – | 1 | – | {law} |",
                speed,
                "|",
            )
        for cause in row["causes"]:
            print(f"  {row['name']}, T = {row['temperature']:g}: {cause}", file=sys.stderr)


def told(law: dict[str, Any]) -> str:
    """Say what an audit found, in a cell."""
    passed = "not the target's" if law["rejected"] else "pass"
    if law["likelihood"] is None:
        return (
            f"{passed} ({law['impossible']['count']} other, {law['impossible']['near_ties']} near)"
        )
    return f"{passed}: {interval(law['likelihood'], 3, '+')} nats"


if __name__ == "__main__":
    main()
