"""What stands against a run here, told before an environment is made or weights are fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from colab_utils import colab, environments
from colab_utils.engine import Operating
from colab_utils.errors import InputError, ParameterError
from colab_utils.fit import require_bf16, require_fit
from colab_utils.manifests import ExperimentManifest, ModelManifest
from colab_utils.weights import is_complete, model_folder, require_room


def require_gpu(experiment: ExperimentManifest) -> dict[str, Any] | None:
    """The GPU that an experiment runs on, as `colab.probe_gpu` describes it; None on the CPU.

    Raises `ParameterError` where there is none or its driver needs another lock, `FitError` for
    one without BF16 (a T4) where the experiment's engine and precision need that.
    """
    gpu, lock = colab.probe_gpu(), experiment.engine_lock
    if lock == environments.CPU_LOCK:
        return None
    where = f"experiment {experiment.name}"
    if gpu is None:
        raise ParameterError(
            f"pins {lock}, which needs a GPU, and there is none here",
            where=f"{where}, field engine_lock",
            mend="change the runtime type (Runtime, Change runtime type) to one with an L4"
            if colab.in_colab()
            else "choose a machine with an NVIDIA GPU of compute capability 8.0 or more",
        )
    require_bf16(experiment, gpu, where=where)
    fitting = environments.choose_lock(gpu["driver"])
    if lock != fitting:
        raise ParameterError(
            f"pins {lock}, this machine has driver {gpu['driver']} and needs {fitting}",
            where=f"{where}, field engine_lock",
            mend="copy the experiment under another name with that lock, for all its models",
        )
    return gpu


def require_model(
    model: ModelManifest, experiment: ExperimentManifest, gpu: dict[str, Any] | None, cache: Path
) -> str | None:
    """The hub's token where weights must still be fetched, None where none is needed or known.

    Raises `FitError` when the model does not fit the GPU, `DownloadFailed` when the disk can't
    hold its weights, `InputError` when it is gated and there is no token.
    """
    if gpu is not None:
        require_fit(model, experiment, gpu, Operating().gpu_memory_utilization)
    folder = model_folder(model, cache)
    if is_complete(folder):
        return None
    require_room(model, folder)
    if model.distribution is not None:
        return None
    token, why = colab.find_token()
    if model.gated and token is None:
        raise InputError(
            "is gated on the hub, and there is no token",
            where=f"model {model.name} ({model.repo})",
            mend=f"accept its licence on the hub, and give a token: {why}",
        )
    return token
