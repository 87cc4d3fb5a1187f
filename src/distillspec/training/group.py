"""Several processes that train one draft, by Accelerate: the only module that imports it.

Gradients are added up by DistributedDataParallel, or the draft's weights, gradients and moments are
sharded by FSDP2, as the launcher's configuration says. Both average over the processes, and a
share of a loss is no average: `backward` multiplies by their number.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
from accelerate.utils import DistributedType, broadcast_object_list, gather_object
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from distillspec.errors import UserError
from distillspec.models.protocol import LanguageModel
from distillspec.training.optimization import Adafactor
from distillspec.training.processes import KINDS
from distillspec.training.state import State

T = TypeVar("T")

PATIENCE = timedelta(hours=6)
"""How long a process waits for the others: the main one may evaluate or write meanwhile."""


@contextmanager
def joined() -> Iterator[Group]:
    """Join the processes that were started with this one; part from them at the end.

    Raises:
        UserError: the launcher was configured for what we do not do.
    """
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        kwargs_handlers=[
            DistributedDataParallelKwargs(gradient_as_bucket_view=True),  # no second copy
            InitProcessGroupKwargs(timeout=PATIENCE),
        ],
    )
    try:
        _check_kind(accelerator)
        yield Group(accelerator)
    finally:
        accelerator.end_training()


def _check_kind(accelerator: Accelerator) -> None:
    kinds = (DistributedType.MULTI_CPU, DistributedType.MULTI_GPU, DistributedType.FSDP)
    if accelerator.distributed_type not in kinds:
        raise UserError(f"the launcher asks for {accelerator.distributed_type.value}; {KINDS}")


class Group:
    """Several processes; `Processes` in `processes.py` says what the methods promise."""

    def __init__(self, accelerator: Accelerator) -> None:
        """Take what the launcher made of its configuration."""
        self.count = int(accelerator.num_processes)
        self.index = int(accelerator.process_index)
        self.device: torch.device = accelerator.device
        self._accelerator = accelerator
        self._shards = accelerator.distributed_type == DistributedType.FSDP

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let a UserError in the block, in whichever process, be raised in all of them."""
        own: UserError | None = None
        try:
            yield
        except UserError as error:
            own = error
        said: list[str | None] = gather_object([None if own is None else str(own)])
        if own is not None:
            raise own
        for index, text in enumerate(said):
            if text is not None:
                raise UserError(f"process {index} of {self.count}: {text}")

    def told(self, act: Callable[[], T]) -> T:
        """Let the main process act, and return in every process what it returned."""
        said: list[Any] = [None]
        if self.index == 0:
            try:
                said = [(True, act())]
            except Exception as error:
                broadcast_object_list([(False, str(error))])
                raise
        broadcast_object_list(said)
        done, result = said[0]
        if not done:
            raise UserError(f"the main process failed: {result}")
        return cast(T, result)

    def sums(self, *values: float) -> list[float]:
        """Add up each of the values over the processes, in float64."""
        mine = torch.tensor(values, dtype=torch.float64, device=self.device)
        added: list[float] = self._accelerator.reduce(mine, "sum").tolist()
        return added

    def trained(self, draft: LanguageModel, state: State) -> LanguageModel:
        """Return the draft, or where weights are sharded a copy that may lose its own.

        The caller's draft stays whole in every process: it writes rollouts, is evaluated and saved,
        while no pass of it could be made by one process alone if it were sharded.
        """
        if not self._shards:
            return draft
        if isinstance(state.recipe.optimizer, Adafactor):
            raise UserError(
                "torch's Adafactor takes no sharded weights: give --optimizer adamw, or use DDP"
            )
        copied = copy.deepcopy(draft)
        theirs = dict(copied.module.named_parameters())
        names = {id(p): name for name, p in draft.module.named_parameters()}
        state.take_over([theirs[names[id(p)]] for p in state.parameters])
        return copied

    def wrapped(self, loss: nn.Module, state: State) -> nn.Module:
        """Return the loss such that its gradients are added up over the processes."""
        if not self._shards:
            return cast(nn.Module, self._accelerator.prepare(loss))
        moments = state.moments()
        plugin = self._accelerator.state.fsdp_plugin
        if plugin.transformer_cls_names_to_wrap is None:  # what to shard by is not configured
            plugin.transformer_cls_names_to_wrap = _layers(loss)
        wrapped, _ = self._accelerator.prepare(loss, state.optimizer)
        parameters = state.optimizer.param_groups[0]["params"]
        state.take_over(parameters, [_like(p, m) for p, m in zip(parameters, moments, strict=True)])
        return cast(nn.Module, wrapped)

    def accumulating(self, loss: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Add up gradients within each process alone until the `last` pass of a step."""
        alone: AbstractContextManager[None] = self._accelerator.no_sync(loss)
        return nullcontext() if last else alone

    def backward(self, value: Tensor) -> None:
        """Add the gradients of a share of the step's loss."""
        self._accelerator.backward(value * self.count)

    def clip(self, parameters: Sequence[nn.Parameter], limit: float) -> float:
        """Scale the gradients down to a norm of `limit`; return the norm before."""
        return float(self.whole(nn.utils.clip_grad_norm_(parameters, limit)))

    def whole(self, tensor: Tensor) -> Tensor:
        """Return a tensor put together from all processes' parts."""
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    @torch.no_grad()
    def bring_home(self, trained: LanguageModel, draft: LanguageModel) -> None:
        """Give the draft the weights of the model that was trained in its place."""
        if trained is draft:
            return
        pairs = zip(draft.module.parameters(), trained.module.parameters(), strict=True)
        for own, theirs in pairs:
            if theirs.requires_grad:
                own.copy_(self.whole(theirs))


def _layers(loss: nn.Module) -> list[str]:
    """Name the classes of the layers that transformers would have sharded one by one."""
    found = {
        name for part in loss.modules() for name in getattr(part, "_no_split_modules", None) or ()
    }
    return sorted(found & {type(part).__name__ for part in loss.modules()})


def _like(parameter: nn.Parameter, moments: dict[str, Tensor]) -> dict[str, Tensor]:
    """Shard the moments that have the shape of a sharded parameter as it is sharded."""
    data = parameter.data
    if not isinstance(data, DTensor):
        return moments
    return {
        name: distribute_tensor(moment, data.device_mesh, data.placements)
        if moment.shape == data.shape
        else moment
        for name, moment in moments.items()
    }
