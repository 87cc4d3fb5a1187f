"""One run of one of TRL's trainers, timed from the inside: the other half of `against_trl.py`.

    PYTHON_WITH_TRL benchmarks/peers/trl_trainers.py JOB.json

JOB.json names the trainer, the folders of the pair, the ids of the prompts in order and the
settings; seconds and tokens of every step go to the job's `out`. `loaded`, beside it, appears once
both models are loaded and nothing has been trained.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback


class Clock(TrainerCallback):
    """Keeps the seconds of every optimiser step."""

    def __init__(self) -> None:
        """Start with no step."""
        self.seconds: list[float] = []
        self._begun = 0.0

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Note the time: the batch is there and nothing is sampled yet."""
        self._begun = time.perf_counter()

    def on_step_end(self, *_: object, **__: object) -> None:
        """Note how long sampling, gradient and update took."""
        self.seconds.append(time.perf_counter() - self._begun)


def main() -> None:
    """Run the job and write what it took."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    build, count = {
        "GKDTrainer": (gkd, lambda inputs: inputs["labels"][:, 1:] != -100),
        "DistillationTrainer": (distillation, lambda inputs: inputs["completion_mask"] != 0),
    }[job["trainer"]]
    clock = Clock()
    trainer = build(job, clock)
    tokens: list[int] = []
    loss = trainer.compute_loss

    def counted(model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        tokens.append(int(count(inputs).sum()))
        return loss(model, inputs, *rest, **named)

    trainer.compute_loss = counted
    for model in (trainer.model, trainer.teacher_model):
        for parameter in model.parameters():
            parameter.sum()  # weights come from the disk when they are first read
    out = Path(job["out"])
    out.with_name("loaded").touch()
    time.sleep(0.1)  # to be seen
    trainer.train()
    out.write_text(json.dumps({"seconds": clock.seconds, "tokens": tokens}), encoding="utf-8")


def common(job: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that both trainers share: one update a batch, nothing else in between."""
    return {
        "output_dir": str(Path(job["out"]).with_name("trainer")),
        "per_device_train_batch_size": job["batch_size"],
        "gradient_accumulation_steps": 1,
        "max_steps": len(job["prompts"]) // job["batch_size"],
        "learning_rate": job["learning_rate"],
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch_fused",
        "weight_decay": 0.0,
        "max_grad_norm": job["clip"],
        "bf16": job["dtype"] == "bfloat16",
        "use_cpu": not torch.cuda.is_available(),
        "dataloader_pin_memory": torch.cuda.is_available(),
        "gradient_checkpointing": job["checkpointing"],
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "beta": 0.5,
        "temperature": 1.0,
        "seed": 0,
    }


def pair(job: dict[str, Any]) -> dict[str, Any]:
    """Load target, draft and tokenizer; the weights are float32 whatever is computed in."""
    teacher, student = (
        AutoModelForCausalLM.from_pretrained(job[name], dtype=torch.float32)
        for name in ("target", "draft")
    )
    tokenizer = AutoTokenizer.from_pretrained(job["draft"], padding_side="left")
    return {"model": student, "teacher_model": teacher, "processing_class": tokenizer}


def gkd(job: dict[str, Any], clock: Clock) -> Any:
    """Make a GKDTrainer that is on-policy only.

    Its collator wants an answer after every prompt, which is replaced and yet counted: the trainer
    divides the loss by the tokens of the file's answers. They are given the length of the sampled.
    """
    trl, new = importlib.import_module("trl.experimental.gkd"), job["new_tokens"]
    settings = trl.GKDConfig(
        **common(job),
        lmbda=1.0,
        max_new_tokens=new,
        train_sampling_strategy="sequential",
    )
    rows = [
        {
            "prompt": "",
            "input_ids": ids + new * ids[-1:],
            "completion_mask": len(ids) * [0] + new * [1],
        }
        for ids in job["prompts"]
    ]
    return trl.GKDTrainer(
        args=settings, train_dataset=Dataset.from_list(rows), callbacks=[clock], **pair(job)
    )


def distillation(job: dict[str, Any], clock: Clock) -> Any:
    """Make a DistillationTrainer, which is always on-policy.

    It tokenizes prompts itself; it is given the ids in its tokenizer's place.
    """
    trl = importlib.import_module("trl")
    settings = trl.DistillationConfig(
        **common(job), max_completion_length=job["new_tokens"], shuffle_dataset=False
    )
    rows = [{"prompt": json.dumps(ids)} for ids in job["prompts"]]
    trainer = trl.DistillationTrainer(
        args=settings, train_dataset=Dataset.from_list(rows), callbacks=[clock], **pair(job)
    )
    trainer._tokenize_prompts = lambda prompts: ([json.loads(ids) for ids in prompts], None, {})
    return trainer


if __name__ == "__main__":
    main()
