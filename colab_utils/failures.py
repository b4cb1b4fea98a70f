"""Why an engine process ended: the cause and the mend, from its log and exit code.

The last line of a vLLM trace is rarely the cause, so known causes are looked for first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """One clause that says what happened, one that says what to do."""

    problem: str
    mend: str


# First match wins: the special before the general.
_KNOWN: tuple[tuple[str, Cause], ...] = (
    (
        r"libcudart\.so|CUDA driver version is insufficient|forward compatibility",
        Cause(
            "the engine was built for another CUDA than this machine's driver",
            "set up again: the lock is chosen by what nvidia-smi says of the driver",
        ),
    ),
    (
        r"No CUDA GPUs are available|Failed to infer device type|no NVIDIA GPU",
        Cause("no GPU is visible", "choose a GPU runtime, or an experiment with the CPU lock"),
    ),
    (
        r"Bfloat16 is only supported on GPUs with compute capability",
        Cause("this GPU has no BF16", "choose an L4 or a newer GPU"),
    ),
    (
        r"CUDA out of memory|OutOfMemoryError|cudaErrorMemoryAllocation",
        Cause(
            "the GPU's memory is full",
            "end other programs on it, or lower max_model_len or max_num_seqs",
        ),
    ),
    (
        r"No available memory for the cache blocks|less than desired GPU memory utilization",
        Cause(
            "no room is left for the KV cache beside the weights",
            "end other programs on the GPU, or lower max_model_len in the model manifest",
        ),
    ),
    (
        r"larger than the (maximum number of tokens|available KV cache memory)|"
        r"is needed, which is larger than",
        Cause(
            "one sequence of max_model_len does not fit the KV cache",
            "lower max_model_len in the model manifest or give the cache more room",
        ),
    ),
    (
        r"gated repo|GatedRepoError|401 Client Error|403 Client Error",
        Cause(
            "the model is gated and no token with access was given",
            "accept its licence on the hub and set HF_TOKEN",
        ),
    ),
    (
        r"contains custom code|requires you to execute the configuration",
        Cause(
            "the model needs its repository's own code",
            "set trust_remote_code: true in its manifest after reading that code",
        ),
    ),
    (
        r"No space left on device",
        Cause("the disk is full", "free some space and start again"),
    ),
    (
        r"Cannot allocate memory|MemoryError|std::bad_alloc",
        Cause("the machine's memory is full", "end other programs or lower cpu_kv_cache_gib"),
    ),
    (
        r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'",
        Cause("the engine's environment lacks {module}", "run the set-up again"),
    ),
)


def explain(log: str, exit_code: int | None) -> Cause:
    """The most likely cause of an engine's end, given its log text and exit code."""
    if exit_code is not None and exit_code < 0:
        return Cause(
            f"the engine process was ended by signal {-exit_code}",
            "start again to go on from the last committed chunk; if it recurs, look for a "
            "full memory in the system's log",
        )
    for pattern, cause in _KNOWN:
        match = re.search(pattern, log)
        if match:
            return Cause(cause.problem.format(**match.groupdict()), cause.mend)
    errors = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception): .+$", log, re.MULTILINE)
    said = errors[-1][:300] if errors else "no error in its log"
    return Cause(f"the engine process ended ({said})", "see engine.log")
