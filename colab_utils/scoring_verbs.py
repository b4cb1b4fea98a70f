"""The verbs around scoring: score, explain, verify-references. No engine is needed for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from colab_utils import colab, environments
from colab_utils import explanation as explanations
from colab_utils import scoring as scoring_module
from colab_utils.errors import ParameterError, RunDirectoryError
from colab_utils.handed_over import local_run
from colab_utils.injected import refuse_unknown
from colab_utils.manifests import PROJECT, load_dataset_manifest, load_experiment_manifest
from colab_utils.parameters import ScoringParameters, checked
from colab_utils.progress import ProgressLine
from colab_utils.run_directory import RunDirectory
from colab_utils.samples import Dataset, load_dataset
from colab_utils.scoring import PartialScoring, ScoringResult
from colab_utils.scoring_progress import ScoringProgress

Say = Callable[[str], None]
EVALUATOR_FOLDER = PROJECT / ".envs" / "evaluator"


def setup_evaluator(*, say: Say = print) -> Path:
    """Make the evaluator environment, which runs model-written programs; return its interpreter."""
    refuse_unknown()
    colab.refuse_drive(EVALUATOR_FOLDER, where=str(EVALUATOR_FOLDER))
    return environments.make_evaluator_environment(folder=EVALUATOR_FOLDER, progress=say)


def score(say: Say = print, **values: Any) -> ScoringResult | PartialScoring:
    """Judge a run's answers by running them; takes the fields of `ScoringParameters`.

    A run in a ZIP or on Drive is copied to its place in `runs` first, and judged there. Needs no
    engine, never touches responses, and does nothing when the same evaluator has
    judged the same answers before. With `only`, judges the answers of one task, condition,
    sample or request; a complete scoring takes their verdicts over.
    """
    parameters = checked(ScoringParameters, values)
    directory = local_run(parameters.run_dir, parameter="run_dir", say=say)
    line = ProgressLine()
    table = ""

    def show(progress: ScoringProgress) -> None:
        nonlocal table
        table = progress.table
        line.show(str(progress), key=progress.phase, more=table)

    common: dict[str, Any] = {
        "dataset": dataset_of(directory),
        "evaluator_python": _evaluator_python(parameters.evaluator_python),
        "allow_weak_sandbox": parameters.allow_weak_sandbox,
        "workers": parameters.workers or None,
        "progress": show,
    }
    done: ScoringResult | PartialScoring
    if parameters.only:
        done = scoring_module.score_part(directory, parameters.only, **common)
    else:
        done = scoring_module.score(
            directory, allow_incomplete=parameters.allow_incomplete, **common
        )
    line.end(str(done))
    if table:
        say(table)
    return done


def verify_references(
    experiment: str = "embedded",
    *,
    cache: str = ".cache",
    evaluator_python: str = "",
    allow_weak_sandbox: bool = False,
    say: Say = print,
) -> dict[str, str]:
    """Run every reference of an experiment's data set; return those that fail, with the reason.

    Their samples will be left out, for all conditions and models alike.
    """
    manifest = load_experiment_manifest(experiment)
    dataset = load_dataset(load_dataset_manifest(manifest.dataset))
    line = ProgressLine()
    found = scoring_module.verify_references(
        colab.local_folder(cache, parameter="cache") / "references",
        dataset=dataset,
        evaluator_python=_evaluator_python(evaluator_python),
        allow_weak_sandbox=allow_weak_sandbox,
        progress=lambda progress: line.show(str(progress), key=progress.phase),
    )
    failing = {name: r.problem for name, r in found.items() if r.problem is not None}
    line.end(f"{len(found) - len(failing)} of {len(found)} references hold")
    for name, problem in failing.items():
        say(f"{name}: {problem}")
    return failing


def explain(run_dir: str | Path, request_id: str) -> str:
    """One answer from prompt to verdicts, as text; from the newest scoring that judged it."""
    directory = colab.local_folder(str(run_dir), parameter="run_dir")
    return explanations.explain(directory, request_id, dataset=dataset_of(directory))


def _evaluator_python(given: str) -> Path:
    return environments.evaluator_interpreter(given or EVALUATOR_FOLDER / "bin" / "python")


def dataset_of(directory: Path) -> Dataset:
    """The data set that a run directory's answers belong to, by the name its run.json holds."""
    run = RunDirectory(directory).read_run()
    if run is None:
        raise ParameterError(
            "holds no run", where=f"{directory}", mend="run the model first, or correct run_dir"
        )
    if not isinstance(run.get("dataset_manifest"), str):
        raise RunDirectoryError(
            "names no data set manifest",
            where=f"{directory / 'run.json'}, dataset_manifest",
            mend="bring the file back from the mirror, or run the model in a new run directory",
        )
    return load_dataset(load_dataset_manifest(PROJECT / run["dataset_manifest"]))
