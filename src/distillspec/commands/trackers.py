"""What --tracker names: the rows of metrics.jsonl on TensorBoard, W&B, trackio or MLflow too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from distillspec.commands.settings import Train
from distillspec.errors import UserError, first_line
from distillspec.settings import as_dict
from distillspec.studies.store import Run, read_run

PROJECT = "distillspec"
"""What a run belongs to where trackers ask for that; the run is called as its folder."""


def check_tracker(settings: Train) -> None:
    """Refuse a tracker that is not installed.

    Raises:
        UserError: saying what to install.
    """
    if settings.tracker is None:
        return
    lacking = [name for name in ("accelerate", settings.tracker) if find_spec(name) is None]
    if lacking:
        raise UserError(
            f"--tracker {settings.tracker} needs the package {' and '.join(lacking)}: "
            f"pip install 'distillspec[{settings.tracker}]'"
        )


@contextmanager
def tracked(run: Run, settings: Train, identity: str) -> Iterator[None]:
    """Have the tracker of the settings follow a run within the block; nothing without one.

    Of several processes the main one alone tells its tracker.

    Args:
        run: Whose rows it is given, those on file already too unless the run is resumed: then the
            process before gave them.
        settings: The verb's.
        identity: The same for every process of one run, by which W&B goes on with it.

    Raises:
        UserError: the tracker cannot be started, or fails later.
    """
    if settings.tracker is None or not _main():
        yield
        return
    tracker = _started(run, settings, identity)

    def follow(row: Mapping[str, Any]) -> None:
        with _explained(settings):
            tracker.log(scalars(row), step=row["step"])

    for row in () if settings.resume else read_run(run.folder).metrics:
        follow(row)
    run.followers.append(follow)
    try:
        yield
    finally:
        run.followers.remove(follow)
        with _explained(settings):
            tracker.finish()


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Return a row of metrics.jsonl as named numbers: of counts, the ratio they are kept for."""
    if "evaluation" in row:
        found = row["evaluation"]
        return {
            "held_out/alpha": found["alpha_sum"] / found["alpha_count"],
            f"held_out/tau_at_gamma_{found['gamma']}": found["tokens"] / found["calls"],
        }
    names = ("loss", "grad_norm", "learning_rate", "tokens")
    numbers = {f"training/{name}": row[name] for name in names}
    if "alpha_count" in row:
        # of which data it is the acceptance depends on the step's, so they stay apart
        numbers[f"training/acceptance_on_{row['source']}"] = row["alpha_sum"] / row["alpha_count"]
    return numbers | {f"seconds/{part}": spent for part, spent in row["seconds_by_part"].items()}


def _main() -> bool:
    """Make the state that some of Accelerate's trackers need, as it is where there is one."""
    from accelerate import PartialState

    return bool(PartialState().is_main_process)


def _started(run: Run, settings: Train, identity: str) -> Any:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    name = run.folder.name
    places: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
        "tensorboard": (("tensorboard", str(run.folder)), {}),
        "wandb": (
            (PROJECT,),
            {"name": name, "id": identity, "resume": "allow", "dir": str(run.folder)},
        ),
        "trackio": ((PROJECT,), {"name": name, "resume": "allow"}),
        "mlflow": ((PROJECT,), {"run_name": name}),
    }
    where, more = places[str(settings.tracker)]
    with _explained(settings):
        tracker = LOGGER_TYPE_TO_CLASS[str(settings.tracker)](*where, **more)
        tracker.start()
        tracker.store_init_configuration(
            {
                key: value if isinstance(value, (bool, int, float, str)) else str(value)
                for key, value in as_dict(settings).items()
            }
        )
    return tracker


@contextmanager
def _explained(settings: Train) -> Iterator[None]:
    """Turn whatever a tracker raises into one line: each has errors of its own."""
    try:
        yield
    except Exception as error:
        raise UserError(
            f"--tracker {settings.tracker}: {type(error).__name__}: {first_line(error)}; "
            "metrics.jsonl has every row in any case"
        ) from error
