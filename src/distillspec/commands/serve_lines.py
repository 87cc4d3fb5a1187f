"""The lines that serve a pair in each engine, with the verification rule the engine then has.

Flags as documented by the engines in 2026; every one of these engines renames some now and then.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distillspec.models.bare import IDS

ENGINES = ("transformers", "vllm", "sglang", "llama.cpp", "openvino")
GGUF_TYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
"""What llama.cpp's converter calls the types of weights that it has."""
OPENVINO_TYPES = {"float32": "fp32", "bfloat16": "fp32", "float16": "fp16"}
"""Likewise optimum-intel's, which has no bfloat16: float32 holds all of it."""


@dataclass(frozen=True)
class Pair:
    """What is served."""

    target: str
    """Folder, hub name or GGUF file of the target."""
    draft: str
    """Folder of the exported draft."""
    gamma: int
    """Drafted tokens per block."""
    rule: str
    """`ratio`, `argmax` or `exact-match`: how acceptance was promised."""
    context: int | None
    """Tokens both models have positions for."""
    dtype: str
    """Type of the draft's weights."""
    target_dtype: str | None
    """Type of the target's weights, in which vLLM and SGLang run both; None where not known, and
    the draft's is taken."""
    target_layers: int
    """Layers of the target's decoder."""
    encoder_decoder: bool
    """Whether both models are encoder-decoders."""

    @property
    def gguf(self) -> bool:
        """Whether the target is a GGUF file, which llama.cpp alone takes as it is."""
        return self.target.endswith(".gguf")

    @property
    def folder(self) -> str:
        """The target for engines that take folders."""
        return "target" if self.gguf else self.target

    @property
    def dtypes(self) -> tuple[str, str]:
        """Types of the target's weights in its folder, and of the draft's."""
        return "float32" if self.gguf else self.target_dtype or self.dtype, self.dtype

    @property
    def on_hub(self) -> bool:
        """Whether the target is a name on the hub: neither a file nor a folder here."""
        return not self.gguf and not Path(self.target).expanduser().is_dir()

    @property
    def served_name(self) -> list[str]:
        """The words by which vLLM and SGLang call the folder of a GGUF file as the file is called.

        Clients know the target by that name, `check-export` among them.
        """
        return ["--served-model-name", self.target] if self.gguf else []

    @property
    def unpacking(self) -> list[str]:
        """The line that makes this folder of a GGUF file: all of its layers, in float32."""
        if not self.gguf:
            return []
        layers = f"0..{self.target_layers - 1}"
        words = ("--target", self.target, "--layers", layers, "--out", self.folder)
        return [_line("distillspec", "new-draft", *words)]


def serve_lines(pair: Pair) -> dict[str, dict[str, Any]]:
    """Return, by engine, `commands` to run, the `rule` it verifies by, and `notes`."""
    return {
        "transformers": _transformers(pair),
        "vllm": _vllm(pair),
        "sglang": _sglang(pair),
        "llama.cpp": _llama_cpp(pair),
        "openvino": _openvino(pair),
    }


def _line(*words: object) -> str:
    return shlex.join(map(str, words))


def _whole(pair: Pair) -> tuple[list[str], list[str]]:
    """Return the words, and the note on them, that keep a float32 pair as it was measured."""
    if pair.target_dtype != "float32" and not pair.gguf:
        return [], []
    note = (
        "--dtype float32: weights of 32 bits are served in 16 otherwise, as another pair than the "
        "one that was measured. To serve them so, leave it out and give measure and check-export "
        "--dtype bfloat16, or float16, whichever the server's log names."
    )
    return ["--dtype", "float32"], [note]


def _converted(pair: Pair, types: Mapping[str, str]) -> tuple[str, str, list[str]]:
    """Return what a converter calls the types of target and draft, and a note on other types."""
    target, draft = (types.get(one, types["float32"]) for one in pair.dtypes)
    notes = [
        f"The converter has no {one}: such weights become float32, and where that rounds them, "
        "the pair is another than the one that was measured."
        for one in sorted({*pair.dtypes} - {*types})
    ]
    return target, draft, notes


def _transformers(pair: Pair) -> dict[str, Any]:
    family = "AutoModelForSeq2SeqLM" if pair.encoder_decoder else "AutoModelForCausalLM"
    code = (
        f"from transformers import {family}, AutoTokenizer, GenerationConfig\n"
        f"tokenizer = AutoTokenizer.from_pretrained({pair.folder!r})\n"
        f"target = {family}.from_pretrained({pair.folder!r})\n"
        f"draft = {family}.from_pretrained({pair.draft!r})\n"
        'ids = tokenizer("Hello!", return_tensors="pt").input_ids\n'
        "# generate takes from here what it is not told: beams, bans, cut-offs. Ids alone stay\n"
        f"own = {{name: getattr(target.generation_config, name) for name in {IDS}}}\n"
        "target.generation_config = GenerationConfig(**own)\n"
        "out = target.generate(ids, assistant_model=draft, do_sample=True, temperature=1.0, "
        "top_k=0, top_p=1.0, repetition_penalty=1.0, max_new_tokens=64)\n"
        "print(tokenizer.decode(out[0]))"
    )
    return {
        "commands": [code],
        "language": "python",
        "rule": "ratio",
        "notes": [
            *(f"The folder of the target: `{line}`." for line in pair.unpacking),
            "A chat model's ids come from tokenizer.apply_chat_template(messages, "
            "add_generation_prompt=True).",
            "Batch 1 only. γ and the threshold are read from the draft's generation_config.json: "
            f"num_assistant_tokens {pair.gamma}, schedule constant, no confidence threshold.",
        ],
    }


def _vllm(pair: Pair) -> dict[str, Any]:
    probabilistic = pair.rule == "ratio"
    config = {
        "method": "draft_model",
        "model": pair.draft,
        "num_speculative_tokens": pair.gamma,
        "draft_sample_method": "probabilistic" if probabilistic else "greedy",
    }
    length = [] if pair.context is None else ["--max-model-len", pair.context]
    dtype, whole = _whole(pair)
    words = ["vllm", "serve", pair.folder, *pair.served_name, *dtype, *length]
    words += ["--speculative-config", json.dumps(config)]
    notes = [
        *whole,
        "draft_sample_method is greedy unless said otherwise: then the rule is argmax draft, and "
        "1 − TVD is not its acceptance.",
        "Send temperature, top_p, top_k, min_p and all three penalties with every request: vLLM "
        "takes those of the target's generation_config.json otherwise.",
    ]
    if pair.rule == "exact-match":
        notes.append("vLLM has no exact-match rule; this line drafts greedily.")
    return {
        "commands": [*pair.unpacking, _line(*words)],
        "language": "sh",
        "rule": "ratio" if probabilistic else "argmax",
        "config": config,
        "notes": notes,
    }


def _sglang(pair: Pair) -> dict[str, Any]:
    dtype, whole = _whole(pair)
    words = [
        "python", "-m", "sglang.launch_server", "--model-path", pair.folder, *dtype,
        *pair.served_name, "--speculative-algorithm", "STANDALONE",
        "--speculative-draft-model-path", pair.draft,
        "--speculative-num-steps", pair.gamma, "--speculative-eagle-topk", 1,
        "--speculative-num-draft-tokens", pair.gamma + 1,
    ]  # fmt: skip
    return {
        "commands": [*pair.unpacking, _line(*words)],
        "language": "sh",
        "rule": "argmax",
        "notes": [
            *whole,
            "num-draft-tokens counts the target's own token too: γ + 1 with topk 1.",
        ],
    }


def _llama_cpp(pair: Pair) -> dict[str, Any]:
    target_type, draft_type, other = _converted(pair, GGUF_TYPES)
    convert = ("python", "convert_hf_to_gguf.py")
    target = pair.target if pair.gguf else "target.gguf"
    source = [pair.target, *(["--remote"] if pair.on_hub else [])]
    probabilistic = pair.rule == "ratio"
    sampling = ["--spec-draft-sampling", "probabilistic"] if probabilistic else []
    length = [] if pair.context is None else ["-c", pair.context]
    notes = [
        *other,
        "convert_hf_to_gguf.py comes with llama.cpp's sources.",
        "Without --spec-type draft-simple the draft is loaded and never asked. Builds before "
        "--spec-draft-n-max call it --draft-max, have no --spec-type and draft greedily.",
        "--spec-draft-p-min 0: otherwise drafts end early where the draft is not sure. --metrics: "
        "check-export reads its counters.",
    ]
    if pair.on_hub:
        notes.append(
            "--remote reads the target's safetensors from the hub; of a copy on disk give the "
            "folder instead."
        )
    if probabilistic:
        notes.append(
            "--spec-draft-sampling came with build b11368 (llama.cpp#27694): older ones draft "
            "greedily, and do not start with it. A sampling draft draws from its ten likeliest "
            "tokens alone."
        )
    if pair.rule == "exact-match":
        notes.append("llama-server has no exact-match rule; this line drafts greedily.")
    return {
        "commands": [
            *(
                [] if pair.gguf
                else [_line(*convert, *source, "--outtype", target_type, "--outfile", target)]
            ),
            _line(*convert, pair.draft, "--outtype", draft_type, "--outfile", "draft.gguf"),
            _line(
                "llama-server", "-m", target, "--alias", pair.target, "-md", "draft.gguf", *length,
                "--spec-type", "draft-simple", "--spec-draft-n-max", pair.gamma,
                "--spec-draft-p-min", 0, *sampling, "--metrics",
            ),
        ],
        "language": "sh",
        "rule": "ratio" if probabilistic else "argmax",
        "notes": notes,
    }  # fmt: skip


def _openvino(pair: Pair) -> dict[str, Any]:
    target_type, draft_type, other = _converted(pair, OPENVINO_TYPES)
    export = ["optimum-cli", "export", "openvino", "--task", "text-generation-with-past"]
    code = (
        "import openvino_genai as ov\n"
        "pipe = ov.LLMPipeline('target-ov', 'CPU', draft_model=ov.draft_model('draft-ov', 'CPU'))\n"
        f"pipe.generate(prompt, num_assistant_tokens={pair.gamma}, max_new_tokens=64)"
    )
    return {
        "commands": [
            *pair.unpacking,
            _line(*export, "--weight-format", target_type, "--model", pair.folder, "target-ov"),
            _line(*export, "--weight-format", draft_type, "--model", pair.draft, "draft-ov"),
        ],
        "language": "sh",
        "python": code,
        "rule": "greedy",
        "notes": [
            *other,
            "At temperature 0 alone. Sampled with a draft it has no rule of those here: it holds "
            "the draft's probability of the drafted token against the target's of another one "
            "(openvino.genai#4190), and its text is not the target's: `distillspec audit` "
            "shows it.",
        ],
    }


def as_markdown(pair: Pair, engines: dict[str, dict[str, Any]]) -> str:
    """Write the lines as a page."""
    parts = [
        "# How to serve this pair\n",
        f"Target `{pair.target}`, draft `{pair.draft}`, γ = {pair.gamma}. Both are named as they "
        "were to `export`: a relative path holds where that ran.\n",
    ]
    for name, engine in engines.items():
        parts.append(f"## {name}\n")
        parts.append(f"Verification rule there: {engine['rule']}.\n")
        parts.append(f"```{engine['language']}\n" + "\n".join(engine["commands"]) + "\n```\n")
        if "python" in engine:
            parts.append(f"```python\n{engine['python']}\n```\n")
        parts += [f"- {note}" for note in engine["notes"]]
        parts.append("")
    return "\n".join(parts)
