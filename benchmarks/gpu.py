"""Measure the run loop on a GPU beside plain vLLM; in the engine interpreter, from the root:

    PYTHONPATH=. python benchmarks/gpu.py speed --shape 0.6B --rounds 3 --out OUT
    PYTHONPATH=. python benchmarks/gpu.py invariance --samples 104 --utilization 0.2 --out OUT
    PYTHONPATH=. python benchmarks/gpu.py starts --samples 104 --utilization 0.2 --out OUT
    PYTHONPATH=. python benchmarks/gpu.py start --shape 0.6B --utilization 0.85 --out OUT

`speed` alternates one ordinary `LLM.generate` of all requests, the product's loop (batch-invariant,
chunks committed to disk) and one batch-invariant call; two engines share the GPU, one idle while
the other works. `invariance` compares answers between chunk sizes, windows, one call, prefix cache
on and off, and a run killed and resumed. `starts` compares answers between engines that compile at
the same time, each for itself; `--timed` lets the compiler choose kernels by their time. `start`
runs the product once, as a user's run does, and says where its seconds went. Lines that begin with
RESULT are JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import made_up

from colab_utils import checkpoints
from colab_utils.engine import (
    Engine,
    Operating,
    _attention_backend,
    import_engine,
    set_engine_environment,
)
from colab_utils.engine_modes import mode_named
from colab_utils.feeding import ChunkWriter, answered_chunks, choose_window
from colab_utils.invariance import self_test
from colab_utils.manifests import load_dataset_manifest
from colab_utils.prompts import Prompt, load_tokenizer, render_all, stop_token_ids
from colab_utils.run_directory import RunDirectory
from colab_utils.samples import load_dataset

WINDOWS = (1, 4, 12)
WORK = Path(os.environ.get("BENCH_WORK", "/tmp/bench"))


def say(**record: Any) -> None:
    """One line of result."""
    print("RESULT " + json.dumps({**record, "at": time.strftime("%H:%M:%S")}), flush=True)


class Side:
    """One engine in this process, with the made-up study's prompts."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        folder = WORK / given.shape
        dataset = load_dataset(load_dataset_manifest(WORK / "data" / "made-up.yaml"))
        requests = dataset.requests()[: given.samples * 5]
        self.lengths = made_up.answer_lengths([request.request_id for request in requests])
        made_up.fix_lengths(self.lengths)
        operating = Operating(
            gpu_memory_utilization=given.utilization,
            max_num_seqs=given.max_num_seqs,
            max_num_batched_tokens=given.batched,
        )
        spec = made_up.run_spec(WORK / "x", folder, WORK / "x", given.shape, operating)
        mode = mode_named(given.mode)
        device = "cpu" if given.shape == "tiny" else "cuda"
        invariant = given.side != "ordinary"
        set_engine_environment(
            device, operating, mode, batch_invariant=invariant, compile_cache=WORK / "compiled"
        )
        if given.timed:
            os.environ.pop("TORCHINDUCTOR_DETERMINISTIC", None)
        began = time.perf_counter()
        import_engine()
        _start_with(
            **({"compilation_config": {}} if given.timed else {}),
            **_kv_room(given.kv_gib),
            **({"enable_prefix_caching": False} if given.without_prefix_cache else {}),
        )
        imported = time.perf_counter()
        tokenizer = load_tokenizer(folder, spec.model)
        self.prompts = render_all(
            requests, spec.model, tokenizer, chat_template=None, max_tokens=made_up.MAX_TOKENS
        )
        rendered = time.perf_counter()
        self.engine = Engine(
            folder, spec.model, spec.experiment.decoding, operating, mode=mode,
            stop_token_ids=stop_token_ids(spec.model, tokenizer),
        )  # fmt: skip
        self.llm: Any = None
        if invariant:
            self.engine.__enter__()
        else:
            self.llm = self._ordinary(folder, operating)
        config = (self.llm.llm_engine if self.llm else self.engine._engine).vllm_config
        say(
            what="start", side=given.side, shape=given.shape, mode=given.mode,
            backend=_attention_backend(config), max_num_seqs=given.max_num_seqs,
            kv_room_tokens=config.cache_config.num_gpu_blocks * config.cache_config.block_size,
            requests=len(requests), answer_tokens=sum(self.lengths.values()),
            prompt_tokens=sum(len(prompt.token_ids) for prompt in self.prompts),
            import_s=round(imported - began, 1), render_s=round(rendered - imported, 1),
            load_s=round(time.perf_counter() - rendered, 1),
        )  # fmt: skip

    def _ordinary(self, folder: Path, operating: Operating) -> Any:
        from vllm import LLM

        return LLM(
            model=str(folder), dtype="bfloat16", seed=0, max_model_len=4096,
            gpu_memory_utilization=operating.gpu_memory_utilization,
            max_num_seqs=operating.max_num_seqs,
            max_num_batched_tokens=operating.max_num_batched_tokens,
            enable_prefix_caching=True, generation_config="vllm",
            enforce_eager=self.given.shape == "tiny", **_kv_room(self.given.kv_gib),
        )  # fmt: skip

    def warm(self) -> None:
        """A few requests, so that what happens once stays out of the first round."""
        few = list(self.prompts[:64])
        if self.llm is not None:
            self.call(few)
        else:
            self.loop(WORK / f"runs-{os.getpid()}-warm", 32, None, few)

    def call(self, prompts: Sequence[Prompt]) -> None:
        """One `LLM.generate` of every request."""
        from vllm import SamplingParams

        ids = [prompt.request.request_id for prompt in prompts]
        params = [
            SamplingParams(temperature=0, max_tokens=self.lengths[name], ignore_eos=True)
            for name in ids
        ]
        self.llm.reset_prefix_cache()
        self.llm.generate(
            [{"prompt_token_ids": list(prompt.token_ids)} for prompt in prompts],
            params, use_tqdm=False,
        )  # fmt: skip

    def loop(
        self,
        run_dir: Path,
        chunk_size: int,
        window: int | None,
        prompts: list[Prompt] | None = None,
    ) -> str:
        """The product's loop into a fresh run directory; the digest of its responses."""
        prompts = list(prompts or self.prompts)
        directory = RunDirectory(run_dir)
        directory.chunks.mkdir(parents=True)
        chunks = checkpoints.plan(len(prompts), chunk_size)
        self.engine.reset_prefix_cache()
        with ChunkWriter(directory, dict) as writer:
            for feed in answered_chunks(
                self.engine, chunks, prompts,
                window=window or choose_window(self.engine, prompts, chunk_size),
                on_given=writer.given, on_step=lambda answers: None,
            ):  # fmt: skip
                writer.commit(feed)
        found = checkpoints.verify(
            directory.chunks, [prompt.request.request_id for prompt in prompts]
        )
        return checkpoints.join(found, directory.responses)


def _kv_room(gib: float) -> dict[str, int]:
    return {"kv_cache_memory_bytes": int(gib * 2**30)} if gib else {}


def _start_with(**arguments: Any) -> None:
    """Start the product's engine with arguments that no user gives.

    Its KV room, because engines that start at once can't measure it; no prefix cache.
    """
    import vllm

    real = vllm.EngineArgs
    vllm.EngineArgs = lambda **given: real(**{**given, **arguments})  # type: ignore[misc,assignment]


def serve(given: argparse.Namespace) -> None:
    """Load once, then do what each line of standard input says."""
    side = Side(given)
    print("READY", flush=True)
    for number, line in enumerate(sys.stdin):
        what = line.strip()
        began = time.perf_counter()
        digest = kept = ""
        if what == "call":
            side.call(side.prompts)
        elif what == "warm":
            side.warm()
        elif what == "test":
            digest = str(self_test(side.engine, side.prompts, mode=given.mode))
        else:
            chunk, window, *count = (int(word) for word in what.split()[1:])
            run_dir = WORK / f"runs-{os.getpid()}-{number}"
            few = side.prompts[: count[0]] if count else None
            digest = side.loop(run_dir, chunk, window or None, few)
            kept = str(run_dir / "responses.jsonl")
        seconds = round(time.perf_counter() - began, 2)
        say(what=what, side=given.side, mode=given.mode, seconds=seconds, digest=digest, kept=kept)
        print("READY", flush=True)


class Other:
    """A `serve` process that is asked one thing at a time."""

    def __init__(
        self,
        given: argparse.Namespace,
        side: str,
        *more: str,
        name: str = "",
        seqs: int = 0,
        kv_gib: float = 0,
        batched: int = 0,
        environment: dict[str, str] | None = None,
    ) -> None:
        mode = given.mode if side == "product" else "compiled"
        log = given.out / f"{name or side}.log".replace(" ", "-")
        command = [
            sys.executable, __file__, "serve", "--side", side, "--mode", mode,
            "--shape", given.shape, "--samples", str(given.samples),
            "--utilization", str(given.utilization), "--kv-gib", str(kv_gib),
            "--max-num-seqs", str(seqs or given.max_num_seqs),
            "--batched", str(batched or given.batched), *more,
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w"), text=True,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip

    def wait(self) -> dict[str, Any]:
        """The result of what was asked last."""
        result: dict[str, Any] = {}
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("RESULT "):
                print(line, end="", flush=True)
                result = json.loads(line.removeprefix("RESULT "))
            elif line.strip() == "READY":
                return result
        raise SystemExit("an engine process ended; see its log")

    def ask(self, what: str) -> dict[str, Any]:
        """Do one thing and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self.wait()

    def end(self) -> None:
        """Let the process go."""
        self._process.kill()
        self._process.wait()


def speed(given: argparse.Namespace) -> None:
    """Alternating rounds of ordinary call, product and invariant call."""
    began = time.perf_counter()
    ordinary = Other(given, "ordinary", kv_gib=given.kv_gib)
    product = Other(
        given, "product",
        seqs=given.product_seqs, kv_gib=given.product_kv_gib, batched=given.product_batched,
    )  # fmt: skip
    ordinary.wait()
    product.wait()
    ordinary.ask("warm")
    product.ask("warm")
    product.ask("test")
    windows = [int(window) for window in given.windows.split(",")]
    names = {window: f"product, window {window or 'chosen'}" for window in windows}
    seconds: dict[str, list[float]] = {
        "ordinary": [],
        **{name: [] for name in names.values()},
        "invariant call": [],
    }
    steps = [("ordinary", "call"), *((name, f"loop 32 {w}") for w, name in names.items())]
    steps.append(("invariant call", "loop 32 100000"))
    for number in range(given.rounds * len(steps)):
        name, what = steps[number % len(steps)]
        longest = max(seconds[name], default=0)
        if time.perf_counter() - began + longest > given.limit_s:
            break
        side = ordinary if name == "ordinary" else product
        seconds[name].append(side.ask(what)["seconds"])
    medians = {name: median(values) for name, values in seconds.items() if values}

    def against(other: str) -> dict[str, float]:
        measured = [name for name in names.values() if name in medians and other in medians]
        return {name: round(medians[other] / medians[name], 2) for name in measured}

    say(
        what="speed", shape=given.shape, requests=given.samples * 5, mode=given.mode,
        seconds=seconds, medians=medians,
        against_ordinary=against("ordinary"), against_invariant_call=against("invariant call"),
    )  # fmt: skip
    ordinary.end()
    product.end()


def invariance(given: argparse.Namespace) -> None:
    """Digests of the answers under every way of feeding, and of a killed and resumed run."""
    digests = _digests(given)
    digests["killed and resumed"] = _product_run(given, kills=1)["digest"]
    say(what="invariance", requests=given.samples * 5, digests=digests,
        different=len(set(digests.values())) - 1)  # fmt: skip


def _digests(given: argparse.Namespace) -> dict[str, str]:
    """Four engines share the device, since a small batch leaves most of it idle."""
    ways = {
        (chunk, window): f"loop {chunk} {window}" for chunk in (5, 32, 128) for window in WINDOWS
    }
    quick = [what for (chunk, window), what in ways.items() if chunk > 5 and window > 1]
    lists: list[tuple[list[str], tuple[str, ...]]] = [
        ([ways[5, 1]], ()),
        ([what for way, what in ways.items() if 1 in way and way != (5, 1)], ()),
        ([ways[5, 4], ways[5, 12], *quick, "loop 32 100000"], ()),
        (["loop 32 12", "loop 5 12", "loop 32 100000"], ("--without-prefix-cache",)),
    ]
    with ThreadPoolExecutor(len(lists)) as pool:
        found = pool.map(lambda one: _asked(given, *one), lists)
    return {name: digest for digests in found for name, digest in digests.items()}


def _asked(
    given: argparse.Namespace, steps: Sequence[str], more: tuple[str, ...]
) -> dict[str, str]:
    label = "without prefix cache" if more else "prefix cache"
    product = Other(
        given, "product", *more, name=f"{label} {steps[0]}", kv_gib=given.product_kv_gib
    )
    product.wait()
    product.ask("test")
    digests = {f"{what}, {label}": str(product.ask(what)["digest"]) for what in steps}
    product.end()
    return digests


def starts(given: argparse.Namespace) -> None:
    """Digests of four engines that compile at the same time; then one of them works alone."""
    more = ("--timed",) if given.timed else ()
    caches = [WORK / f"compiled-{os.getpid()}-{number}" for number in range(4)]
    engines = [
        Other(
            given, "product", *more, name=cache.name, kv_gib=given.product_kv_gib,
            environment={
                name: str(cache / name.lower())
                for name in ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
            },
        )
        for cache in caches
    ]  # fmt: skip
    for engine in engines:
        engine.wait()
    found = [engine.ask("loop 32 12") for engine in engines]
    for number, one in enumerate(found):
        shutil.copy(one["kept"], given.out / f"responses-{given.timed}-{number}.jsonl")
    alone = [engines[-1].ask("loop 32 12")["seconds"] for _ in range(given.rounds)]
    for engine in engines:
        engine.end()
    say(
        what="starts", requests=given.samples * 5, timed=given.timed, seconds_alone=alone,
        digests=[one["digest"] for one in found],
    )  # fmt: skip


def start(given: argparse.Namespace) -> None:
    """One undisturbed run of the product, and where its seconds went."""
    say(what="start of a run", **_product_run(given, kills=0))


def _product_run(given: argparse.Namespace, kills: int) -> dict[str, Any]:
    """A run in a process of its own, as `launch` starts one, killed so many times on its way."""
    directory = RunDirectory(WORK / f"run-{given.shape}-{kills}-{os.getpid()}")
    operating = Operating(
        gpu_memory_utilization=given.utilization,
        max_num_seqs=given.max_num_seqs,
        max_num_batched_tokens=given.batched,
    )
    dataset = WORK / "data" / "made-up.yaml"
    if given.samples < 512:
        dataset = made_up.write_dataset(WORK / f"data-{given.samples}", given.samples)
    spec = made_up.run_spec(directory.path, WORK / given.shape, dataset, given.shape, operating)
    directory.chunks.mkdir(parents=True)
    began = time.perf_counter()
    for number in range(kills + 1):
        child = subprocess.Popen(
            [sys.executable, __file__, "run"], stdin=subprocess.PIPE,
            stdout=(given.out / "run.log").open("a"), stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert child.stdin is not None
        with child.stdin:
            child.stdin.write(spec.model_dump_json().encode())
        while child.poll() is None:
            time.sleep(0.05)
            if number < kills and len(list(directory.chunks.glob("*.jsonl"))) > 4 * (number + 1):
                child.send_signal(signal.SIGKILL)
    run = directory.read_run()
    if run is None or not run["completed"]:
        raise SystemExit("the run did not end; see run.log")
    return {
        "seconds": round(time.perf_counter() - began, 1), "kills": kills,
        "digest": run["completed"]["responses_sha256"], "prefill": run["completed"]["prefill"],
        "segments": run["segments"], "settings": run["run"],
    }  # fmt: skip


def run() -> None:
    """The product's engine process, answering with fixed lengths."""
    from colab_utils import runs
    from colab_utils.run_record import RunSpec

    text = sys.stdin.buffer.read()
    spec = RunSpec.model_validate_json(text)
    dataset = load_dataset(load_dataset_manifest(spec.dataset_manifest))
    made_up.fix_lengths(made_up.answer_lengths([r.request_id for r in dataset.requests()]))
    sys.exit(runs.run_process(spec))


def main() -> None:
    """Make what is needed, then measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("speed", "invariance", "starts", "start", "serve", "run"))
    parser.add_argument("--shape", choices=tuple(made_up.SHAPES), default="0.6B")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", default="product")
    parser.add_argument("--mode", default="compiled")
    parser.add_argument("--utilization", type=float, default=0.42)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--product-seqs", type=int, default=0, help="0: as the ordinary side")
    parser.add_argument("--kv-gib", type=float, default=0.0, help="0: as vLLM measures it")
    parser.add_argument("--product-batched", type=int, default=0, help="0: as the ordinary side")
    parser.add_argument("--timed", action="store_true", help="let the compiler time kernels")
    parser.add_argument("--without-prefix-cache", action="store_true")
    parser.add_argument("--product-kv-gib", type=float, default=0.0)
    parser.add_argument("--limit-s", type=float, default=1e9, help="no further step after it")
    parser.add_argument("--windows", default="0", help="chunks in flight; 0: the program's choice")
    parser.add_argument("--batched", type=int, default=16384)
    parser.add_argument("--out", type=Path, default=Path("out"))
    given = parser.parse_args()
    if given.what == "run":
        run()
    if given.what == "serve":
        serve(given)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    made_up.write_model(WORK / given.shape, given.shape)
    if not (WORK / "data" / "made-up.yaml").exists():
        made_up.write_dataset(WORK / "data")
    measures = {"speed": speed, "invariance": invariance, "starts": starts, "start": start}
    measures[given.what](given)


if __name__ == "__main__":
    main()
