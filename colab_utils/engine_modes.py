"""Ways to run one model in vLLM on a GPU, in the order in which a run tries them.

Which of them keeps answers independent of batching differs between releases and cards, so none
is taken for granted: `invariance` tests them on the user's own device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from colab_utils.errors import RunDirectoryError


@dataclass(frozen=True)
class Mode:
    """How the engine executes the model: what is compiled, captured, and which attention runs."""

    name: str
    eager: bool = False
    torch_compile: bool = True
    attention_backend: str | None = None

    def environment(self) -> dict[str, str]:
        """Variables that vLLM reads at import."""
        graphs_alone = not self.eager and not self.torch_compile
        # Releases without it ignore the variable, and the self-test then judges what they do.
        found = {"VLLM_USE_BREAKABLE_CUDAGRAPH": str(int(graphs_alone))}
        if self.torch_compile and not self.eager:
            # Else the compiler times kernels that sum in different orders and keeps the quicker
            # one, so that two starts on one machine may give different answers.
            found["TORCHINDUCTOR_DETERMINISTIC"] = "1"
        return found

    def engine_arguments(self) -> dict[str, Any]:
        """What the mode adds to vLLM's EngineArgs."""
        chosen: dict[str, Any] = {"enforce_eager": self.eager}
        if self.attention_backend is not None:
            chosen["attention_backend"] = self.attention_backend
        if self.torch_compile and not self.eager:
            # vLLM up to 0.26 times these even where the compiler is told not to.
            kernels = {"combo_kernels": True, "benchmark_combo_kernel": False}
            chosen["compilation_config"] = {"inductor_compile_config": kernels}
        return chosen


COMPILED = Mode("compiled")
EAGER = Mode("eager", eager=True)
# The first that holds is used.
MODES = (
    COMPILED,
    Mode("graphs", torch_compile=False),
    EAGER,
    Mode("compiled, TRITON_ATTN", attention_backend="TRITON_ATTN"),
)


def mode_named(name: str) -> Mode:
    """The mode that a run recorded; raises `RunDirectoryError` for one that is not known here."""
    for mode in MODES:
        if mode.name == name:
            return mode
    raise RunDirectoryError(
        f"names the engine mode {name!r}, which this version does not have",
        where="run.json, field run.mode",
        mend="go on with the version that began the run, or choose another run directory",
    )
