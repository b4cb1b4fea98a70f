"""The verbs: what the notebooks and the command line call, in one place.

Each checks all of its input first, then works, shows one line of progress, and ends with a
result that says where things are. Nothing that is already done is done again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from colab_utils import (
    colab,
    environments,
    fingerprints,
    gate,
    launch,
    preflight,
    records,
    weights,
)
from colab_utils.engine import operating_for
from colab_utils.errors import ParameterError, RunDirectoryError, SmokeFailed
from colab_utils.fetch import ensure_weights
from colab_utils.following import follow as follow
from colab_utils.following import run_to_end
from colab_utils.handed_over import local_run
from colab_utils.manifests import (
    PROJECT,
    ExperimentManifest,
    ModelManifest,
    load_dataset_manifest,
    load_experiment_manifest,
    load_model_manifest,
    manifest_path,
)
from colab_utils.mirror_launch import mirror_of
from colab_utils.mirror_ledger import MirrorState
from colab_utils.parameters import ReportParameters, RunParameters, SetupParameters, checked
from colab_utils.responses import read_responses
from colab_utils.run_directory import RunDirectory
from colab_utils.run_record import RunSpec
from colab_utils.samples import Dataset, load_dataset
from colab_utils.scoring_verbs import dataset_of as dataset_of
from colab_utils.scoring_verbs import explain as explain
from colab_utils.scoring_verbs import score as score
from colab_utils.scoring_verbs import setup_evaluator as setup_evaluator
from colab_utils.scoring_verbs import verify_references as verify_references

if TYPE_CHECKING:
    from colab_utils.report import Report

Say = Callable[[str], None]
Kind = Literal["smoke", "full"]
CHUNK_SIZE: dict[Kind, int] = {"smoke": 5, "full": 32}
ENGINE_FOLDER = PROJECT / ".envs" / "engine"


@dataclass(frozen=True)
class RunResult:
    """A complete run: its folder, its answers, how they ended, and where copies of them are."""

    run_dir: Path
    responses: Path
    responses_sha256: str
    requests: int
    stopped: int
    cut: int
    rejected: int
    batch_invariant: bool
    already_complete: bool
    mirror: MirrorState | None

    def __str__(self) -> str:
        done = "was already complete" if self.already_complete else "is complete"
        safe = f"; {self.mirror}" if self.mirror is not None else ""
        return (
            f"{self.requests} answers ({self.stopped} stopped, {self.cut} cut by length, "
            f"{self.rejected} rejected); the run {done}: {self.responses}{safe}"
        )


@dataclass(frozen=True)
class _Prepared:
    parameters: RunParameters
    model: ModelManifest
    experiment: ExperimentManifest
    dataset: Dataset
    engine_python: Path
    runs: Path
    cache: Path
    warnings: tuple[str, ...]
    gpu: dict[str, Any] | None
    # Out of what is shown of this object.
    token: str | None = field(repr=False)


def setup(
    experiment: str = "embedded", *, model: str = "", cache: str = ".cache", say: Say = print
) -> Path:
    """Make the engine environment that an experiment pins; return its interpreter.

    What stands against a run is told first: a GPU that is missing, or too old, or whose driver
    needs another lock; with `model` also one that does not fit, weights that `cache` can't hold, a
    token that is missing. Raises what `preflight` raises, `ParameterError` for a parameter and for
    a project on Drive, and `InterpreterError` when the environment can't be made.
    """
    values = {"experiment": experiment, "model": model, "cache": cache}
    given = checked(SetupParameters, values)
    manifest = load_experiment_manifest(given.experiment)
    colab.refuse_drive(ENGINE_FOLDER, where=str(ENGINE_FOLDER))
    gpu = preflight.require_gpu(manifest)
    if given.model:
        folder = colab.local_folder(given.cache, parameter="cache")
        preflight.require_model(load_model_manifest(given.model), manifest, gpu, folder)
    return environments.make_environment(
        PROJECT / manifest.engine_lock, folder=ENGINE_FOLDER, progress=say
    )


def smoke(say: Say = print, **values: Any) -> RunResult:
    """Run the smoke gate of one model: 15 requests; raises `SmokeFailed` when it is not passed.

    Takes the fields of `RunParameters`. It is no score.
    """
    prepared = _prepare(values)
    result = _run("smoke", prepared, say)
    directory = RunDirectory(result.run_dir)
    ids = [request.request_id for request in prepared.dataset.smoke_requests()]
    verdict = gate.judge(read_responses(directory.responses, ids), prepared.model)
    if not verdict.passed:
        raise SmokeFailed(
            "the smoke gate is not passed: " + "; ".join(verdict.problems),
            where=str(result.run_dir),
            mend="look at responses.jsonl and engine.log there",
        )
    say(
        f"Smoke passed: {len(ids)} of {len(ids)} answers, {verdict.cut} cut by length "
        f"(at most {prepared.model.smoke.max_cut} allowed). It is no score."
    )
    return result


def full_run(say: Say = print, **values: Any) -> RunResult:
    """Run all requests of one model; resumes what an earlier start left.

    Takes the fields of `RunParameters`. Raises `SmokeNotPassed` when the smoke gate was not
    passed under the same decoding, unless `require_smoke` is False, which is recorded.
    """
    return _run("full", _prepare(values), say)


def replay(run_dir: Path, chunks: int, *, cache: str, say: Say = print) -> Path:
    """Answer the requests of some chunks of a complete run again under another batching.

    `chunks` are spread over the run. Says how many answers changed by task and condition; scoring
    the run again judges those. Returns the file that keeps the replay. Raises `ParameterError`
    for fewer than one chunk, `RunDirectoryError` for a run that is not complete, and what a run
    raises when its model, data set or engine are not those of then.
    """
    if chunks < 1:
        raise ParameterError(f"is {chunks}", where="chunks", mend="give 1 or more")
    directory = RunDirectory(run_dir)
    run = directory.read_run()
    if run is None or not directory.is_complete():
        raise RunDirectoryError(
            "holds no complete run", where=str(run_dir), mend="run it to its end first"
        )
    # runs/EXPERIMENT/MODEL/KIND
    values = {"experiment": run["experiment"], "model": run["model"]}
    runs_folder = str(run_dir.resolve().parents[2])
    prepared = _prepare({**values, "runs": runs_folder, "cache": cache, "replay": 0})
    folder = _weights(prepared, say)
    spec = _spec(run["kind"], prepared, directory, folder, run["chunk_size"], ())
    before = set(directory.replays.glob("*.json"))
    spec = spec.model_copy(update={"replay_chunks": chunks})
    follow(directory.path, launch.start(spec, prepared.engine_python))
    made = (set(directory.replays.glob("*.json")) - before).pop()
    record = records.read_json(made)
    for cell in record["by"]:
        if cell["changed"]:
            say(f"{cell['task']} {cell['condition']}: {cell['changed']} of {cell['requests']}")
    say(
        f"{record['changed']} of {record['requests']} answers changed under another batching; "
        f"score the run again to judge them: {made}"
    )
    return made


def report(say: Say = print, **values: Any) -> Report:
    """Write the report of scored runs; takes the fields of `ReportParameters`.

    One run's report lies in its run directory; a joint one in `report/` beside the models. Runs
    in a ZIP or on Drive are copied to their places in `runs` first.
    """
    # Plots and statistics take seconds to import, which the other verbs need not wait for.
    from colab_utils.report import make_report

    parameters = checked(ReportParameters, values)
    directories = [local_run(t, parameter="run_dirs", say=say) for t in parameters.run_dirs]
    target = directories[0].parent.parent / "report" if len(directories) > 1 else None
    made = make_report(directories, dataset=dataset_of(directories[0]), target=target)
    say(f"report:   {made.html}")
    say(f"database: {made.database}")
    say(f"tables:   {', '.join(path.name for path in made.csv.values())} in {made.html.parent}")
    return made


def run_dir(runs: str, experiment: str, model: str, kind: Kind = "full") -> Path:
    """Where the run of one model under one experiment lies: `runs/experiment/model/kind`."""
    name = load_experiment_manifest(experiment).name
    folder = colab.local_folder(runs, parameter="runs")
    return folder / name / load_model_manifest(model).name / kind


def _prepare(values: dict[str, Any]) -> _Prepared:
    parameters = checked(RunParameters, values)
    model = load_model_manifest(parameters.model)
    experiment = load_experiment_manifest(parameters.experiment)
    if model.name not in experiment.models:
        raise ParameterError(
            f"{model.name} is not a model of experiment {experiment.name}",
            where="parameter model",
            mend=f"choose one of {', '.join(experiment.models)}",
        )
    dataset = load_dataset(load_dataset_manifest(experiment.dataset))
    gpu = preflight.require_gpu(experiment)
    cache = colab.local_folder(parameters.cache, parameter="cache")
    token = preflight.require_model(model, experiment, gpu, cache)
    engine_python = _engine_python(parameters, experiment)
    warnings: tuple[str, ...] = ()
    if not model.locked:
        unverified = ", ".join(model.unverified) or "its fields"
        warnings = (
            f"model manifest {model.name} is not locked: {unverified} not confirmed with the hub",
        )
    return _Prepared(
        parameters,
        model,
        experiment,
        dataset,
        engine_python,
        colab.local_folder(parameters.runs, parameter="runs"),
        cache,
        warnings,
        gpu,
        token,
    )


def _engine_python(parameters: RunParameters, experiment: ExperimentManifest) -> Path:
    lock = PROJECT / experiment.engine_lock
    given = parameters.engine_python
    python = Path(given) if given else ENGINE_FOLDER / "bin" / "python"
    environments.check_engine(python, lock)
    return python


def _run(kind: Kind, prepared: _Prepared, say: Say) -> RunResult:
    parameters, model, experiment = prepared.parameters, prepared.model, prepared.experiment
    for warning in prepared.warnings:
        say(f"Warning: {warning}.")
    parent = prepared.runs / experiment.name / model.name
    directory = RunDirectory(parent / kind)
    # The smoke's too: a new machine has neither, and the gate asks for it. Before the weights: a
    # mirror that can't be had is told before gigabytes are fetched.
    for folder_name in dict.fromkeys(("smoke", kind)):
        mirror = mirror_of(parameters.mirror, parent / folder_name, prepared.runs)
        if mirror is not None:
            mirror.restore(say)
    folder = _weights(prepared, say)
    decoding = fingerprints.decoding_settings(
        model, experiment, digests=weights.check_weights(folder, model)
    )
    warnings = list(prepared.warnings)
    if kind == "full":
        if parameters.require_smoke:
            gate.require_smoke(
                RunDirectory(parent / "smoke"), model, fingerprints.fingerprint(decoding)
            )
        else:
            warnings.append("the smoke gate was overridden (require_smoke=False)")
    earlier = directory.read_run()
    if earlier is not None:
        where = str(directory.path)
        fingerprints.refuse_difference(earlier["decoding"], decoding, where=where)
    chunk_size = parameters.chunk_size or CHUNK_SIZE[kind]
    already = directory.is_complete()
    copying = None
    if already:
        _refuse_other_settings(directory, prepared, chunk_size)
    else:
        spec = _spec(kind, prepared, directory, folder, chunk_size, tuple(warnings))
        copying = run_to_end(spec, prepared.engine_python, mirror, say)
    if mirror is not None and already:
        copying = mirror.start(None)
    state = mirror.finish(copying) if mirror is not None and copying is not None else None
    requests = prepared.dataset.smoke_requests() if kind == "smoke" else prepared.dataset.requests()
    result = _result(directory, [request.request_id for request in requests], already, state)
    say(f"{kind}: {result}")
    return result


def _weights(prepared: _Prepared, say: Say) -> Path:
    model = prepared.model
    return ensure_weights(
        model,
        cache=prepared.cache,
        engine_python=prepared.engine_python,
        token=prepared.token,
        say=say,
    )


def _spec(
    kind: Kind,
    prepared: _Prepared,
    directory: RunDirectory,
    model_folder: Path,
    chunk_size: int,
    warnings: tuple[str, ...],
) -> RunSpec:
    experiment = prepared.experiment
    return RunSpec(
        kind=kind,
        run_dir=directory.path,
        model_folder=model_folder,
        model=prepared.model,
        dataset_manifest=manifest_path(experiment.dataset, "datasets").resolve(),
        experiment=experiment,
        operating=operating_for(prepared.model, prepared.gpu, chunk_size),
        require_smoke=prepared.parameters.require_smoke,
        warnings=warnings,
        replay=prepared.parameters.replay,
    )


def _refuse_other_settings(directory: RunDirectory, prepared: _Prepared, chunk_size: int) -> None:
    """A complete run started again under other settings is another run: say so, don't hide it."""
    run = directory.read_run()
    assert run is not None
    old = {"dataset_sha256": run["run"]["dataset_sha256"], "chunk_size": run["chunk_size"]}
    new = {"dataset_sha256": prepared.dataset.manifest.sha256, "chunk_size": chunk_size}
    if run["run"]["batch_invariant"]:
        del old["chunk_size"], new["chunk_size"]
    fingerprints.refuse_difference(old, new, where=str(directory.path))


def _result(
    directory: RunDirectory, request_ids: list[str], already: bool, mirror: MirrorState | None
) -> RunResult:
    responses = read_responses(directory.responses, request_ids)
    run = directory.read_run()
    assert run is not None
    ends = [response.finish_reason for response in responses]
    return RunResult(
        run_dir=directory.path,
        responses=directory.responses,
        responses_sha256=run["completed"]["responses_sha256"],
        requests=len(responses),
        stopped=ends.count("stop"),
        cut=ends.count("length"),
        rejected=ends.count("rejected"),
        batch_invariant=run["run"]["batch_invariant"],
        already_complete=already,
        mirror=mirror,
    )
