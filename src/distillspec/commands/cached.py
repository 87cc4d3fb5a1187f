"""A target that is known from its cache alone."""

from __future__ import annotations

from distillspec.commands.settings import Distill
from distillspec.errors import UserError
from distillspec.models import load_tokenizer
from distillspec.models.files_digest import files_digest
from distillspec.training.offline import OfflineTarget, open_cache, recorded


def offline_target(settings: Distill) -> OfflineTarget:
    """Open the cache that --cache names; the target is not loaded, only told from others.

    Raises:
        UserError: there is none, it is of another target than --target, or what was asked for
            needs the target itself.
    """
    if settings.cache is None:
        raise ValueError("no cache is named")
    if settings.held_out is not None:
        raise UserError(
            f"--held-out {settings.held_out} needs answers of the target, which --cache goes "
            "without; measure the draft afterwards, or leave out --cache"
        )
    if settings.reference is not None:
        raise UserError(
            f"--reference {settings.reference} is for select:FRACTION, which needs the target "
            "itself; leave it out, or leave out --cache"
        )
    if settings.target is None:
        return open_cache(settings.cache)
    wanted = {"vocabulary": load_tokenizer(settings.target).vocabulary.digest}
    if not recorded(settings.cache).served:
        wanted["weights"] = files_digest(settings.target)
    return open_cache(settings.cache, wanted)
