"""What the picker has chosen: an experiment, one of its models, and what is known of them here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from colab_utils import colab, jobs
from colab_utils.errors import InputError, ParameterError
from colab_utils.job_record import Action, Job, JobSpec
from colab_utils.manifests import (
    list_manifests,
    load_experiment_manifest,
    load_model_manifest,
    manifest_path,
)
from colab_utils.mirror_hub import HUB
from colab_utils.mirror_launch import mirror_of
from colab_utils.model_table import ModelRow, model_rows
from colab_utils.parameters import PickerParameters


class Selection:
    """The chosen experiment and model; `rows` are the experiment's models as last read.

    Made in a cell: Drive is mounted and Colab asked for the token then, since neither a callback
    nor a job has a front end that answers. Raises `ParameterError`, `ManifestError`, and
    `InputError` when Drive can't be mounted.
    """

    def __init__(self, parameters: PickerParameters) -> None:
        self._parameters = parameters
        self.runs: Path = colab.local_folder(parameters.runs, parameter="runs")
        self._cache = colab.local_folder(parameters.cache, parameter="cache")
        self._gpu, self._no_gpu = _probe()
        self._token: str | None = None
        self._no_token = ""
        self.choose_experiment(parameters.experiment, parameters.model, in_cell=True)
        mirror_of(parameters.mirror, self.spec("full_run").run_dir, self.runs)

    def choose_experiment(self, name: str, model: str | None = None, *, in_cell: bool) -> None:
        """Choose an experiment, by name or path, and its first model where `model` is None.

        Raises `ParameterError` for a model that is none of its, `ManifestError`; then all stays.
        """
        path = manifest_path(name, "experiments")
        manifest = load_experiment_manifest(name)
        if model is not None and model not in manifest.models:
            raise ParameterError(
                f"{model} is not a model of experiment {manifest.name}",
                where="parameter model",
                mend=f"choose one of {', '.join(manifest.models)}",
            )
        # A job has another working folder, so a path is made absolute.
        known = name in list_manifests("experiments")
        self.experiment_file = name if known else str(path.resolve())
        self.experiment = manifest.name
        self.model = model or manifest.models[0]
        self.reload()
        if self._token is None and (self._mirrors_to_hub or any(row.hub for row in self.rows)):
            self._token, self._no_token = colab.find_token(in_cell=in_cell)
            self.reload()

    def reload(self) -> None:
        """Read manifests and run directories again."""
        self.rows = model_rows(
            self.experiment_file,
            runs=self.runs,
            cache=self._cache,
            gpu=self._gpu,
            has_token=self._token is not None,
            require_smoke=self._parameters.require_smoke,
        )

    @property
    def names(self) -> list[str]:
        """The experiment's models."""
        return [row.name for row in self.rows]

    @property
    def row(self) -> ModelRow:
        """The chosen model's row."""
        return next(row for row in self.rows if row.name == self.model)

    @property
    def notices(self) -> tuple[str, ...]:
        """What is missing here and why, one sentence each."""
        gated = any(row.gated for row in self.rows)
        return tuple(filter(None, (self._no_gpu, self._no_token if gated else "")))

    def row_of(self, job: Job) -> str:
        """The model whose row a job works on, empty for a job of another experiment."""
        here = job.spec.experiment == self.experiment and job.spec.model in self.names
        return job.spec.model if here else ""

    def spec(self, action: Action, model: str | None = None) -> JobSpec:
        """What a job is told that does `action` on `model`, the chosen one where None."""
        parameters = self._parameters
        return JobSpec(
            action=action,
            experiment=self.experiment,
            experiment_file=self.experiment_file,
            model=model or self.model,
            runs=self.runs,
            cache=self._cache,
            engine_python=parameters.engine_python,
            evaluator_python=parameters.evaluator_python,
            mirror=parameters.mirror,
            require_smoke=parameters.require_smoke,
            allow_weak_sandbox=parameters.allow_weak_sandbox,
            replay=parameters.replay,
        )

    def token_for(self, spec: JobSpec) -> str | None:
        """The hub's token where a job may need it; raises `ManifestError`."""
        if spec.action not in ("smoke", "full_run"):
            return None
        from_hub = load_model_manifest(spec.model).distribution is None
        return self._token if from_hub or self._mirrors_to_hub else None

    def going(self) -> Job | None:
        """What is going on here: a job, or a run of these models that was started without one."""
        job = jobs.current(self.runs)
        found = (jobs.foreign_run(self.spec("smoke", name)) for name in self.names)
        return job or next(filter(None, found), None)

    @property
    def _mirrors_to_hub(self) -> bool:
        return self._parameters.mirror.startswith(HUB)


def _probe() -> tuple[dict[str, Any] | None, str]:
    try:
        return colab.probe_gpu(), ""
    except InputError as error:
        return None, str(error)
