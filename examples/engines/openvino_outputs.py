"""Let OpenVINO GenAI answer prompts with a draft, and write what it did for `check-export`.

    python openvino_outputs.py target-ov held_out.jsonl --draft draft-ov --gamma 2 --out with.jsonl

Without --draft the target alone. In an environment with openvino-genai; the folders are made by
optimum-cli (docs/export.md). Prompts are JSON lines as the verbs of distillspec read them.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import openvino_genai as ov


def main() -> None:
    """Answer one prompt after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--draft")
    parser.add_argument("--gamma", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=0.0)  # right there alone
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    settings, precision = {}, {"INFERENCE_PRECISION_HINT": "f32"}  # else bf16, where there is any
    settings["scheduler_config"] = ov.SchedulerConfig()
    settings["scheduler_config"].max_num_batched_tokens = 2**15  # a prompt is read in one run
    if given.draft:
        settings["draft_model"] = ov.draft_model(given.draft, "CPU", **precision)
    pipe = ov.LLMPipeline(given.target, "CPU", **settings, **precision)
    config = pipe.get_generation_config()
    config.max_new_tokens, config.do_sample = given.max_new_tokens, given.temperature > 0
    if given.temperature > 0:
        config.temperature, config.top_p, config.top_k = given.temperature, 1.0, 2**64 - 1  # none
    config.repetition_penalty, config.presence_penalty, config.frequency_penalty = 1.0, 0.0, 0.0
    config.apply_chat_template = False
    if given.draft:
        config.num_assistant_tokens = given.gamma
    lines = enumerate(given.prompts.read_text(encoding="utf-8").split("\n"), start=1)
    name = given.prompts.name
    rows = [{"id": f"{name}:{n}", **json.loads(one)} for n, one in lines if one.strip()]
    with given.out.open("w", encoding="utf-8") as file:
        for i, row in enumerate(rows[: given.limit]):
            config.rng_seed = i
            for _ in range(2 if i == 0 else 1):  # the first of all is to warm up
                line = answer(pipe, config, row, drafts=bool(given.draft))
            file.write(json.dumps(line) + "\n")


def answer(pipe: ov.LLMPipeline, config: ov.GenerationConfig, row: dict, *, drafts: bool) -> dict:
    """Answer one prompt; counted are the main model's runs, of which the first reads the prompt."""
    tokenizer = pipe.get_tokenizer()
    chat = row.get("messages") or [{"role": "user", "content": row.get("prompt") or row["input"]}]
    if chat[-1]["role"] == "assistant":  # an answer that the file has, as data to train on do
        chat = chat[:-1]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
    asked = tokenizer.encode(text, add_special_tokens=False)
    start = time.perf_counter()
    result = pipe.generate(asked, config)
    seconds = time.perf_counter() - start
    ids, ended = list(result.tokens[0]), result.finish_reasons[0].name.lower()
    counts = {"calls": len(ids) - 1, "drafted": 0, "accepted": 0, "seconds": seconds, "alone": 1}
    if drafts:
        told = result.extended_perf_metrics
        counts["calls"] = len(told.main_model_metrics.raw_metrics.m_durations) - 1
        counts["drafted"] = told.get_num_draft_tokens()
        counts["accepted"] = told.get_num_accepted_tokens()
    found = {key: row[key] for key in ("id", "prompt", "input", "messages") if key in row}
    found |= {"prompt_ids": asked.input_ids.data[0].tolist(), "target_ids": ids}
    return found | {"finish_reason": ended, "counts": counts}


if __name__ == "__main__":
    main()
