"""Low-rank adapters (LoRA, Hu et al. 2022) by peft, put into a draft and merged when it is saved.

peft's layers take the place of the draft's own, so whatever runs the draft's modules runs the
adapters too. What is saved is a plain model: nothing of peft is needed to load it.
"""

from __future__ import annotations

import copy
from importlib.util import find_spec

from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from distillspec.errors import UserError
from distillspec.models.seeds import globally_seeded
from distillspec.models.widths import SIXTEEN_BITS

ALPHA_PER_RANK = 2
"""α / rank: the factor on the adapters' product. α = 2 · rank, and adapters on every linear layer
rather than on attention alone, is what Biderman et al. 2024 (arXiv 2405.09673) advise."""


def check_lora() -> None:
    """Refuse adapters where there is no peft.

    Raises:
        UserError: saying what to install.
    """
    if find_spec("peft") is None:
        raise UserError("LoRA needs the package peft: pip install 'distillspec[lora]'")


def add_lora(module: PreTrainedModel, rank: int, *, seed: int) -> None:
    """Put fresh adapters on a model's linear layers and freeze everything else, in place.

    The output layer stays as it is, whole or trimmed. The model's outputs do not change: one
    factor of each adapter begins at 0. Adapters of 16-bit weights are float32, because their
    updates would be rounded away.

    Args:
        module: The draft's.
        rank: The inner dimension of an adapter, at least 1.
        seed: Of the other factor's values.

    Raises:
        UserError: if peft is not installed.
    """
    check_lora()
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=rank,
        lora_alpha=ALPHA_PER_RANK * rank,
        target_modules="all-linear",
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in module.modules()),
    )
    with globally_seeded(module.device, seed):
        inject_adapter_in_model(config, module)
    for parameter in module.parameters():
        if parameter.requires_grad and parameter.dtype in SIXTEEN_BITS:
            parameter.data = parameter.data.float()


def merged(module: PreTrainedModel) -> PreTrainedModel:
    """Return a module without adapters that computes the same: a copy, or itself if it has none.

    A copy, because adding to the weights and subtracting again would not give them back bit for
    bit, and training may go on.
    """
    if not hasattr(module, "peft_config"):  # peft leaves it on what it changes
        return module
    from peft.tuners.lora import LoraLayer

    plain = copy.deepcopy(module)
    for name, layer in list(plain.named_modules()):
        if isinstance(layer, LoraLayer):
            layer.merge()
            plain.set_submodule(name, layer.get_base_layer())
    del plain.peft_config
    plain._hf_peft_config_loaded = False  # transformers' own mark, which saves adapters alone
    return plain
