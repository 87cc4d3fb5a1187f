"""The processes that train one draft together, seen from one of them.

A step is a function of the run's seed and the step's number, so every process knows the whole
step's examples, takes its own share of them, and writes what a single process would have written.
What it is not a function of (the clock, a Ctrl-C, the disk, held-out evaluations) the main process
decides for all. `ALONE` is the usual case, in which nothing is talked over; several processes are
`training.group`, the only module that imports accelerate.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from distillspec import launch
from distillspec.errors import UserError
from distillspec.models.protocol import LanguageModel

if TYPE_CHECKING:
    from distillspec.training.state import State

KINDS = "draft and target train by DDP (distributed_type MULTI_GPU) or FSDP (version 2)"
"""What a launcher may ask for."""

T = TypeVar("T")
R = TypeVar("R")


class Processes(Protocol):
    """What a run asks of its processes. All of them make the same calls in the same order."""

    @property
    def count(self) -> int:
        """How many they are."""
        ...

    @property
    def index(self) -> int:
        """The number of this one, from 0; 0 is the main process."""
        ...

    @property
    def device(self) -> torch.device | None:
        """Where this one computes; None where that is the user's choice."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """Let a UserError in the block, in whichever process, be raised in all of them."""
        ...

    def told(self, act: Callable[[], T]) -> T:
        """Let the main process act, and return in every process what it returned.

        Raises:
            Exception: in the main process, what `act` raised.
            UserError: in the others, if it raised anything.
        """
        ...

    def sums(self, *values: float) -> list[float]:
        """Add up each of the values over the processes, in float64."""
        ...

    def trained(self, draft: LanguageModel, state: State) -> LanguageModel:
        """Return the model to compute gradients of: the draft, or a copy that is to be sharded."""
        ...

    def wrapped(self, loss: nn.Module, state: State) -> nn.Module:
        """Return the loss such that its gradients are added up over the processes."""
        ...

    def accumulating(self, loss: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Add up gradients within each process alone until the `last` pass of a step."""
        ...

    def backward(self, value: Tensor) -> None:
        """Add the gradients of a share of the step's loss."""
        ...

    def clip(self, parameters: Sequence[nn.Parameter], limit: float) -> float:
        """Scale the gradients down to a norm of `limit`; return the norm before."""
        ...

    def whole(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the optimizer's state put together from all processes' parts."""
        ...

    def bring_home(self, trained: LanguageModel, draft: LanguageModel) -> None:
        """Give the draft the weights of the model that was trained in its place."""
        ...


@dataclass(frozen=True)
class Alone:
    """One process by itself."""

    count: int = 1
    index: int = 0
    device: torch.device | None = None

    def together(self) -> AbstractContextManager[None]:
        """Do nothing about it."""
        return nullcontext()

    def told(self, act: Callable[[], T]) -> T:
        """Act."""
        return act()

    def sums(self, *values: float) -> list[float]:
        """Return the values."""
        return list(values)

    def trained(self, draft: LanguageModel, state: State) -> LanguageModel:
        """Return the draft."""
        return draft

    def wrapped(self, loss: nn.Module, state: State) -> nn.Module:
        """Return the loss."""
        return loss

    def accumulating(self, loss: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Do nothing about it."""
        return nullcontext()

    def backward(self, value: Tensor) -> None:
        """Add the gradients."""
        torch.autograd.backward(value)

    def clip(self, parameters: Sequence[nn.Parameter], limit: float) -> float:
        """Scale the gradients down to a norm of `limit`; return the norm before."""
        return float(nn.utils.clip_grad_norm_(parameters, limit))

    def whole(self, tensor: Tensor) -> Tensor:
        """Return the tensor."""
        return tensor

    def bring_home(self, trained: LanguageModel, draft: LanguageModel) -> None:
        """Do nothing: they are one."""


ALONE = Alone()


@dataclass(frozen=True)
class Main(Generic[T]):
    """Something that the main process alone has, such as an open run directory."""

    processes: Processes
    """Whose."""
    _value: T | None

    @staticmethod
    def of(processes: Processes, make: Callable[[], T]) -> Main[T]:
        """Let the main process make it; if it fails all do."""
        made: list[T] = []
        processes.told(lambda: made.append(make()))
        return Main(processes, made[0] if made else None)

    def told(self, act: Callable[[T], R]) -> R:
        """Let the main process do something with it; return what that returned, everywhere."""
        return self.processes.told(lambda: act(cast(T, self._value)))


def check_environment() -> None:
    """Refuse settings of `accelerate launch` that would be ignored, or do harm.

    Raises:
        UserError: naming one, and what to give instead.
    """

    def asked(name: str) -> str:
        return os.environ.get(name, "").lower()

    if asked("ACCELERATE_MIXED_PRECISION") not in ("", "no"):
        raise UserError(
            f"the launcher asks for mixed_precision {asked('ACCELERATE_MIXED_PRECISION')}: leave "
            "it at no, and give --dtype bfloat16 to train in it"
        )
    if asked("ACCELERATE_GRADIENT_ACCUMULATION_STEPS") not in ("", "1"):
        raise UserError(
            "the launcher asks for gradient_accumulation_steps "
            f"{asked('ACCELERATE_GRADIENT_ACCUMULATION_STEPS')}: leave it at 1; --batch-size is "
            "the whole step's, and --rows-at-once says how many rows of it a pass takes"
        )
    for engine in ("DeepSpeed", "Megatron_LM"):
        if asked(f"ACCELERATE_USE_{engine.upper()}") == "true":
            raise UserError(f"the launcher asks for {engine}; {KINDS}")
    if asked("ACCELERATE_USE_FSDP") != "true":
        return
    if not torch.cuda.is_available():
        raise UserError(
            "the launcher asks for FSDP, which Accelerate does on GPUs alone: on CPUs it would "
            "copy the draft to every process instead; leave FSDP out here"
        )
    if asked("FSDP_VERSION") != "2":
        raise UserError("the launcher asks for FSDP 1: set fsdp_version: 2")
    if asked("FSDP_CPU_RAM_EFFICIENT_LOADING") == "true":
        raise UserError(
            "the launcher asks for fsdp_cpu_ram_efficient_loading, which would load the target, "
            "which every process needs whole, in one process alone: set it to false"
        )


@contextmanager
def launched() -> Iterator[Processes]:
    """Join the processes that were started with this one, and part from them at the end.

    Raises:
        UserError: accelerate is missing, or was configured for what we do not do.
    """
    check_environment()
    if launch.process_count() == 1:
        yield ALONE
        return
    try:
        from distillspec.training.group import joined
    except ModuleNotFoundError as error:
        raise UserError(
            f"{launch.process_count()} processes were started, and training together needs "
            f"{error.name}: pip install 'distillspec[scale]'"
        ) from error
    with joined() as group:
        yield group
