"""Every verb by its name. Imports nothing heavy, so that `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distillspec.commands import measure_settings, trim_settings
from distillspec.commands import serving_settings as serving
from distillspec.commands import settings as verbs
from distillspec.commands import study_settings as on_studies
from distillspec.commands import task_settings as on_tasks


@dataclass(frozen=True)
class Verb:
    """One verb of the command line."""

    settings: type[Any]
    """Its settings; the docstring is its help."""
    module: str
    """The module of its function, in `distillspec.commands`."""
    function: str = "run"
    """The function: settings -> result."""
    together: bool = False
    """Whether several processes can share its work."""
    out: str | None = None
    """As a step of a study: the name of its --out; None for a verb that is no step."""
    product: str | None = None
    """What of its --out a later step takes, "" for the whole; None if there is nothing to take."""


VERBS = {
    "demo": Verb(verbs.Demo, "demo"),
    "new-model": Verb(on_studies.NewModel, "new_model", out="model", product=""),
    "new-draft": Verb(verbs.NewDraft, "new_draft", out="model", product=""),
    "trim": Verb(trim_settings.Trim, "trim"),
    "sft": Verb(verbs.Sft, "train", "run_sft", together=True, out="run", product="draft"),
    "distill": Verb(
        verbs.Distill, "train", "run_distill", together=True, out="run", product="draft"
    ),
    "generate": Verb(verbs.Generate, "generate", out="answers.jsonl", product=""),
    "measure": Verb(measure_settings.Measure, "measure", out="run"),
    "decode": Verb(verbs.Decode, "decode"),
    "evaluate": Verb(on_tasks.Evaluate, "evaluate", out="run"),
    "tradeoff": Verb(on_tasks.Tradeoff, "tradeoff", out="run"),
    "transfer": Verb(on_tasks.Transfer, "transfer", out="run"),
    "garden": Verb(on_studies.Garden, "garden", out="run"),
    "bounds": Verb(on_studies.Bounds, "bounds", out="run"),
    "perplexity": Verb(on_studies.Perplexity, "perplexity", out="run"),
    "tune": Verb(on_studies.Tune, "tune", out="run"),
    "study": Verb(on_studies.Study, "study"),
    "export": Verb(serving.Export, "export"),
    "check-export": Verb(serving.CheckExport, "check_export"),
    "audit": Verb(serving.Audit, "audit"),
    "report": Verb(verbs.Report, "report"),
}
