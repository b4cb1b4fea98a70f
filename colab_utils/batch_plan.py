"""What a batch has to do, and what of it is done: asked of the run directories themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from colab_utils import colab, fingerprints, gate, records, weights
from colab_utils.errors import ParameterError, RunDirectoryError, SmokeNotPassed
from colab_utils.heartbeat import now
from colab_utils.manifests import (
    ExperimentManifest,
    ModelManifest,
    load_dataset_manifest,
    load_experiment_manifest,
    load_model_manifest,
    manifest_path,
)
from colab_utils.mirror_launch import mirror_of
from colab_utils.parameters import BatchParameters
from colab_utils.run_directory import RunDirectory
from colab_utils.samples import load_dataset
from colab_utils.scoring import ScoringResult, latest_scoring

Phase = Literal["smoke", "full", "scoring"]
PHASES: tuple[Phase, ...] = ("smoke", "full", "scoring")


@dataclass(frozen=True)
class Job:
    """One model of a batch: `given` is what notebooks are told, the rest is where things lie."""

    given: str
    model: ModelManifest
    smoke: RunDirectory
    full: RunDirectory
    weights: Path

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.name

    def directory(self, phase: str) -> RunDirectory:
        """The run directory that a phase works in; scoring's is the full run's."""
        return self.smoke if phase == "smoke" else self.full


@dataclass(frozen=True)
class Plan:
    """A checked batch. `experiment_given` is what notebooks are told; `chunk_size` the full runs'.

    `cache` keeps models, `home` is the experiment's folder below that of all runs.
    """

    experiment_given: str
    experiment: ExperimentManifest
    dataset_sha256: str
    chunk_size: int
    home: Path
    cache: Path
    jobs: tuple[Job, ...]

    @property
    def folder(self) -> Path:
        """Where the batch keeps its record, its lock and its notebooks."""
        return self.home / "batch"

    @property
    def notebooks(self) -> Path:
        """Where output notebooks are kept, each under a number of its own."""
        return self.folder / "notebooks"


def make_plan(parameters: BatchParameters, *, chunk_size: int) -> Plan:
    """Check all that was given; raises `ParameterError`, `ManifestError` or `DataError`.

    `chunk_size` is the default for full runs. Nothing is started or written.
    """
    experiment = load_experiment_manifest(parameters.experiment)
    home = colab.local_folder(parameters.runs, parameter="runs") / experiment.name
    cache = colab.local_folder(parameters.cache, parameter="cache")
    jobs: dict[str, Job] = {}
    for text in parameters.models:
        model = load_model_manifest(text)
        if model.name not in experiment.models:
            raise ParameterError(
                f"{model.name} is not a model of experiment {experiment.name}",
                where="parameter models",
                mend=f"choose of {', '.join(experiment.models)}",
            )
        if model.name in jobs:
            raise ParameterError(f"names {model.name} twice", where="parameter models")
        jobs[model.name] = Job(
            given=_anywhere(text, "models"),
            model=model,
            smoke=RunDirectory(home / model.name / "smoke"),
            full=RunDirectory(home / model.name / "full"),
            weights=weights.model_folder(model, cache),
        )
    dataset = load_dataset(load_dataset_manifest(experiment.dataset))
    return Plan(
        experiment_given=_anywhere(parameters.experiment, "experiments"),
        experiment=experiment,
        dataset_sha256=dataset.manifest.sha256,
        chunk_size=parameters.chunk_size or chunk_size,
        home=home,
        cache=cache,
        jobs=tuple(jobs.values()),
    )


def require_mirror(plan: Plan, mirror: str) -> None:
    """Mount Drive where the mirror lies there; raises what `mirror_launch.mirror_of` raises."""
    mirror_of(mirror, plan.jobs[0].full.path, plan.home.parent)


def restore(plan: Plan, job: Job, mirror: str, say: Callable[[str], None]) -> None:
    """Bring a model's runs back from the mirror, before anything is decided.

    Raises what `mirror_launch.RunMirror.restore` raises.
    """
    for directory in (job.smoke, job.full):
        place = mirror_of(mirror, directory.path, plan.home.parent)
        if place is not None:
            place.restore(say)


def copy(plan: Plan, job: Job, mirror: str) -> None:
    """Copy to the mirror what it lacks of a full run that no notebook has run now.

    Raises `ChunkConflict` when a range of requests has two digests.
    """
    place = mirror_of(mirror, job.full.path, plan.home.parent)
    if place is not None:
        place.finish(place.start(None))


def next_phase(plan: Plan, job: Job) -> Phase | None:
    """The phase that a model's run directories lack, None when it is complete and scored.

    Raises `FingerprintMismatch` when they hold answers of other settings than the batch's, and
    `RunDirectoryError` or `RecordError` when they can't be read.
    """
    for directory in (job.smoke, job.full):
        _refuse_other_settings(plan, job, directory)
    if job.full.is_complete():
        return None if scored(job.full) else "scoring"
    return "full" if smoke_passed(job) else "smoke"


def decoding_now(
    run: dict[str, Any], model: ModelManifest, experiment: ExperimentManifest
) -> dict[str, Any]:
    """The decoding under which a run would be made now, by the manifests alone.

    Weights may be gone from the cache: their digests are those that the manifest locks, else the
    run's own. Raises `KeyError`, `TypeError` or `ValueError` for a run that does not name them.
    """
    files = dict(run["decoding"]["model"]["files"])
    files |= {name: locked.sha256 for name, locked in model.files.items()}
    return fingerprints.decoding_settings(model, experiment, digests=files)


def smoke_passed(job: Job) -> bool:
    """Whether the smoke directory holds a passed gate."""
    run = job.smoke.read_run()
    if run is None:
        return False
    try:
        gate.require_smoke(job.smoke, job.model, run["decoding_fingerprint"])
    except SmokeNotPassed:
        return False
    return True


def scored(directory: RunDirectory) -> ScoringResult | None:
    """The newest scoring of a complete run if it judged the answers that are there, else None."""
    scoring, run = latest_scoring(directory.path), directory.read_run()
    if scoring is None or run is None or not run["completed"]:
        return None
    same = scoring.scoring.responses_sha256 == run["completed"]["responses_sha256"]
    return scoring if same else None


class Record:
    """The batch's own log, a line a change of state: `at`, `model`, `state` and what belongs to it.

    States are waiting, smoke, full, scoring, done and failed; `model` is null for the joint
    report. What is done is never decided by it, except which runs a report covers.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "record.jsonl"
        self._last: dict[str | None, dict[str, Any]] = {}
        for line in records.read_log(self._path):
            if "model" in line:
                self._last[line["model"]] = line

    def write(self, model: str | None, state: str, **more: Any) -> None:
        """Append a new state; `more` is its notebook, say, or the cause of a failure."""
        line = {"at": now(), "model": model, "state": state, **more}
        records.append_line(self._path, line)
        self._last[model] = line

    def last(self, model: str | None) -> dict[str, Any]:
        """The newest line on a model or the report, empty when there is none."""
        return self._last.get(model, {})


def new_notebook(plan: Plan, model: str, phase: str) -> Path:
    """A path that no earlier notebook has: `notebooks/0007-MODEL-PHASE.ipynb`."""
    numbers = [int(path.name[:4]) for path in plan.notebooks.glob("[0-9][0-9][0-9][0-9]-*")]
    return plan.notebooks / f"{max(numbers, default=0) + 1:04d}-{model}-{phase}.ipynb"


def _refuse_other_settings(plan: Plan, job: Job, directory: RunDirectory) -> None:
    run = directory.read_run()
    if run is None:
        return
    try:
        decoding = decoding_now(run, job.model, plan.experiment)
        old = {"dataset_sha256": run["run"]["dataset_sha256"], "chunk_size": run["chunk_size"]}
        invariant = run["run"]["batch_invariant"]
    except (KeyError, TypeError, ValueError) as error:
        raise RunDirectoryError(
            f"does not say how its answers were made ({error!r})",
            where=str(directory.run_json),
            mend="choose another run directory",
        ) from error
    where = str(directory.path)
    fingerprints.refuse_difference(run["decoding"], decoding, where=where)
    new = {"dataset_sha256": plan.dataset_sha256, "chunk_size": plan.chunk_size}
    if directory == job.smoke or invariant:
        del old["chunk_size"], new["chunk_size"]
    fingerprints.refuse_difference(old, new, where=where)


def _anywhere(text: str, kind: str) -> str:
    """A manifest's name as it is, a path so that it holds in any working directory."""
    path = manifest_path(text, kind)
    return text if path.stem == text else str(path.resolve())
