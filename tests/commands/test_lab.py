"""Where the demo's drafts are trained."""

from __future__ import annotations

import torch

from distillspec.commands.lab import Budget, Lab
from distillspec.math.sampling import Sampling
from distillspec.studies.outputs import TargetOutputs
from distillspec.studies.store import Run
from distillspec.training.cache import HiddenCache
from distillspec.training.data import Batches, Example
from distillspec.training.recipes import SUPERVISED_KD
from support import perturbed, tiny


def test_a_draft_cut_from_a_16_bit_target_trains_in_32(tmp_path):
    target = tiny("llama")
    draft = perturbed(target, 0.05)
    for model in (target, draft):
        model.module.bfloat16()
    prompts = [torch.tensor([7, 8]), torch.tensor([9, 10])]
    answers = [torch.tensor([11, 12, 1]), torch.tensor([13, 1])]
    sampling = Sampling()
    held = TargetOutputs(
        tuple(prompts),
        tuple(answers),
        tuple(torch.zeros(len(answer), 32, dtype=torch.bfloat16) for answer in answers),
        sampling,
    )
    data = Batches([Example(*pair) for pair in zip(prompts, answers, strict=True)], 32)
    store = Run.create(tmp_path / "run", verb="demo", config={}, seed=0, device="cpu")
    lab = Lab(target, data, HiddenCache(), held, store, Budget(60.0), 0)
    lab.train("sft", draft, SUPERVISED_KD, 0.01)
    assert {parameter.dtype for parameter in draft.parameters()} == {torch.float32}
    assert lab.tokens["sft"] > 0
