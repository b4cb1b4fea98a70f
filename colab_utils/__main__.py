"""The verbs on the command line: `python -m colab_utils VERB --help`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colab_utils import colab, workbench
from colab_utils.errors import WorkbenchError
from colab_utils.fetch import lock_manifest
from colab_utils.launch import stop as stop_run

if TYPE_CHECKING:
    from colab_utils.verification import Verification

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__
)

Experiment = Annotated[str, typer.Option(help="Experiment manifest, by name or path.")]
Model = Annotated[str, typer.Option(help="Model manifest, by name or path.")]
Runs = Annotated[str, typer.Option(help="Folder of all runs.")]
Cache = Annotated[str, typer.Option(help="Folder that keeps models.")]
EnginePython = Annotated[str, typer.Option(help="Engine interpreter; empty: the one of setup.")]
ChunkSize = Annotated[
    int | None, typer.Option(help="Requests a chunk; by default 5 for smoke, 32 for a run.")
]
Mirror = Annotated[str, typer.Option(help="Folder that chunks are copied to; empty: none.")]
Replay = Annotated[int, typer.Option(help="Requests answered again at the end.")]
EvaluatorPython = Annotated[str, typer.Option(help="Empty: the one of setup.")]
WeakSandbox = Annotated[bool, typer.Option(help="Go on where only process limits can be had.")]
Workers = Annotated[int, typer.Option(help="Answers judged at once; 0: default.")]
RunDir = Annotated[Path, typer.Argument(help="A run directory.")]

EXPERIMENT = "embedded"
MODEL = "smollm2-135m-instruct"


@app.command()
def setup(experiment: Experiment = EXPERIMENT) -> None:
    """Make the engine environment that an experiment pins, and the evaluator's."""
    workbench.setup(experiment)
    workbench.setup_evaluator()


@app.command()
def check(
    experiment: Experiment = EXPERIMENT, runs: Runs = "runs", cache: Cache = ".cache"
) -> None:
    """Look at manifests, data, environment, GPU fit and disk; load nothing."""
    # Statistics and papermill take seconds to import: only the verbs that need them wait.
    from colab_utils import check as checks

    findings = checks.check(
        experiment,
        cache=colab.local_folder(cache, parameter="cache"),
        runs=colab.local_folder(runs, parameter="runs"),
    )
    for finding in findings:
        print(f"{finding.state:8}{finding.subject}: {finding.text}")
    if any(finding.state == "error" for finding in findings):
        raise typer.Exit(2)


@app.command()
def smoke(
    experiment: Experiment = EXPERIMENT,
    model: Model = MODEL,
    runs: Runs = "runs",
    cache: Cache = ".cache",
    engine_python: EnginePython = "",
    chunk_size: ChunkSize = None,
    mirror: Mirror = "",
) -> None:
    """Run the smoke gate of one model: 15 requests. It is no score."""
    workbench.smoke(
        experiment=experiment,
        model=model,
        runs=runs,
        cache=cache,
        engine_python=engine_python,
        chunk_size=chunk_size,
        mirror=mirror,
    )


@app.command()
def run(
    experiment: Experiment = EXPERIMENT,
    model: Model = MODEL,
    runs: Runs = "runs",
    cache: Cache = ".cache",
    engine_python: EnginePython = "",
    chunk_size: ChunkSize = None,
    require_smoke: Annotated[bool, typer.Option(help="Refuse without a passed smoke.")] = True,
    mirror: Mirror = "",
    replay: Replay = 32,
) -> None:
    """Run all requests of one model, or go on where an earlier start ended."""
    workbench.full_run(
        experiment=experiment,
        model=model,
        runs=runs,
        cache=cache,
        engine_python=engine_python,
        chunk_size=chunk_size,
        require_smoke=require_smoke,
        mirror=mirror,
        replay=replay,
    )


@app.command()
def replay(
    run_dir: RunDir,
    chunks: Annotated[int, typer.Option(help="Chunks whose requests are answered again.")] = 4,
    cache: Cache = ".cache",
) -> None:
    """Answer part of a complete run again under another batching; count what changes."""
    workbench.replay(run_dir, chunks, cache=cache)


@app.command()
def watch(run_dir: RunDir) -> None:
    """Follow a run that was started elsewhere, to its end; Ctrl-C stops the run."""
    workbench.follow(run_dir)


@app.command()
def stop(run_dir: RunDir) -> None:
    """End a run; finished chunks stay committed."""
    print("stopped" if stop_run(run_dir) else "no run is going on there")


@app.command()
def score(
    run_dir: RunDir,
    evaluator_python: Annotated[str, typer.Option(help="Empty: the one of setup.")] = "",
    allow_weak_sandbox: Annotated[
        bool, typer.Option(help="Go on where only process limits can be had.")
    ] = False,
    allow_incomplete: Annotated[bool, typer.Option(help="Score what is there.")] = False,
    only: Annotated[str, typer.Option(help="Only one task, condition, sample or request.")] = "",
    workers: Annotated[int, typer.Option(help="Answers judged at once; 0: default.")] = 0,
) -> None:
    """Judge a run's answers by running them; needs no engine and never touches them."""
    workbench.score(
        run_dir=run_dir.resolve(),
        evaluator_python=evaluator_python,
        allow_weak_sandbox=allow_weak_sandbox,
        allow_incomplete=allow_incomplete,
        only=only,
        workers=workers,
    )


@app.command()
def explain(
    run_dir: RunDir, request_id: Annotated[str, typer.Argument(help="sample_id/condition")]
) -> None:
    """Show one answer from prompt to verdicts: what was extracted, what ran, how it ended."""
    print(workbench.explain(run_dir.resolve(), request_id), end="")


@app.command("verify-references")
def verify_references(
    experiment: Experiment = EXPERIMENT,
    cache: Cache = ".cache",
    evaluator_python: Annotated[str, typer.Option(help="Empty: the one of setup.")] = "",
    allow_weak_sandbox: Annotated[
        bool, typer.Option(help="Go on where only process limits can be had.")
    ] = False,
) -> None:
    """Run every reference of a data set; name those that fail here, whose samples are left out."""
    failing = workbench.verify_references(
        experiment,
        cache=cache,
        evaluator_python=evaluator_python,
        allow_weak_sandbox=allow_weak_sandbox,
    )
    if failing:
        raise typer.Exit(1)


@app.command()
def report(
    run_dirs: Annotated[list[Path], typer.Argument(help="Scored run directories.")],
) -> None:
    """Make report.html, its tables and results.sqlite from scored runs."""
    workbench.report(run_dirs=[str(path.resolve()) for path in run_dirs])


@app.command()
def batch(
    models: Annotated[list[str], typer.Argument(help="Model manifests, by name or path.")],
    experiment: Experiment = EXPERIMENT,
    runs: Runs = "runs",
    cache: Cache = ".cache",
    engine_python: EnginePython = "",
    chunk_size: Annotated[int | None, typer.Option(help="Requests a chunk of a full run.")] = None,
    mirror: Mirror = "",
    replay: Replay = 32,
    evaluator_python: EvaluatorPython = "",
    allow_weak_sandbox: WeakSandbox = False,
    workers: Workers = 0,
    free_cache: Annotated[
        bool, typer.Option(help="Remove a model's weights once it is scored.")
    ] = False,
) -> None:
    """Run a list of models: smoke, full run, scoring, a joint report. Again: goes on."""
    from colab_utils import batch as batches

    # SIGTERM stops a batch as Ctrl-C does, its engine included.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    batches.batch(
        experiment=experiment,
        models=models,
        runs=runs,
        cache=cache,
        engine_python=engine_python,
        chunk_size=chunk_size,
        mirror=mirror,
        replay=replay,
        evaluator_python=evaluator_python,
        allow_weak_sandbox=allow_weak_sandbox,
        workers=workers,
        free_cache=free_cache,
    )


@app.command()
def verify(
    run_dir: RunDir,
    mirror: Annotated[bool, typer.Option(help="Read the run's mirror, too.")] = False,
) -> None:
    """Check a run's files against their digests and fingerprints; change nothing."""
    from colab_utils import verification
    from colab_utils.mirror_launch import mirror_of_ledger

    place = mirror_of_ledger(run_dir.resolve()) if mirror else None
    if mirror and place is None:
        print("the run has no mirror")
    _tell(verification.verify(run_dir.resolve(), mirror=place))


@app.command()
def repair(
    run_dir: RunDir,
    keep: Annotated[str, typer.Option(help="Digest of the chunk to trust, of two.")] = "",
) -> None:
    """Bring back or make again what is damaged; what can't be had is set aside, never deleted."""
    from colab_utils.repair import repair as mend

    _tell(mend(run_dir.resolve(), keep=keep))


def _tell(found: Verification) -> None:
    for problem in found.problems:
        print(problem)
    print(f"{len(found.problems) or 'nothing'} wrong; checked: {found.checked}")
    if found.problems:
        raise typer.Exit(1)


@app.command()
def lock(model: Model) -> None:
    """Confirm a model's revision and files with the hub and write them to its manifest."""
    manifest = lock_manifest(model, token=colab.hub_token())
    print(f"{manifest.name} is locked at {manifest.revision}, {len(manifest.files)} files")


@app.command("demo")
def demo_(runs: Runs = "runs") -> None:
    """The whole job on the embedded model: smoke, full run, scoring, report."""
    from colab_utils import demo

    demo.demo(runs)


def main() -> int:
    """Run one verb; errors of this project become one sentence and their exit code."""
    try:
        code = app(standalone_mode=False)
    except typer.Exit as error:
        return int(error.exit_code)
    except WorkbenchError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except Exception as error:
        # Click's usage errors know how to show themselves and their exit code (2).
        if not hasattr(error, "show"):
            raise
        error.show()
        return int(getattr(error, "exit_code", 2))
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
