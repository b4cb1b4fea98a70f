"""A run that stands still: said after a minute, ended and started again after a limit."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest
from builders import run_spec, small_lines, write_dataset

from colab_utils import records
from colab_utils.errors import EngineStalled
from colab_utils.launch import status_text
from colab_utils.run_directory import RunDirectory, RunStatus
from colab_utils.supervision import supervise

MODEL = "llama-3.2-3b-instruct"
RUNNING = RunStatus("running", True, 40, 120, 5.0, {"pid": 7, "step_seconds": 2.0})


def test_a_minute_without_a_sign_of_life_is_called_stalled():
    assert "last sign of life 5 s ago" in status_text(RUNNING)
    silent = replace(RUNNING, silent_seconds=61.0)
    assert status_text(silent) == ("stalled in phase running at 40/120: no sign of life for 61 s")
    assert not replace(silent, alive=False).stalled


def test_an_engine_without_a_step_stands_still_though_its_heart_beats():
    assert RUNNING.still_seconds == 7.0
    assert replace(RUNNING, beat={"step_seconds": 700.0}).still_seconds == 705.0
    assert replace(RUNNING, alive=False).still_seconds == 0.0


@pytest.mark.slow
def test_a_frozen_engine_is_ended_and_started_again_and_that_is_kept(tiny, engine_python, tmp_path):
    dataset = write_dataset(tmp_path, small_lines(3))
    spec = run_spec(tmp_path / "run", tiny(MODEL), dataset, chunk_size=5)
    directory = RunDirectory(spec.run_dir)
    frozen: list[int] = []
    said: list[str] = []

    def freeze(status: RunStatus) -> None:
        # Each start, once it has begun to answer.
        pid = status.beat.get("pid")
        if status.alive and status.phase == "running" and pid not in frozen:
            frozen.append(pid)
            os.kill(pid, signal.SIGSTOP)

    with pytest.raises(EngineStalled, match=r"stood still for .* its log ends: ."):
        supervise(spec, engine_python, show=freeze, say=said.append, stall_seconds=8, restarts=1)
    assert directory.runner() is None
    lines = [x for x in records.read_log(directory.timeline) if x["event"] == "stalled"]
    assert [line["runner"] for line in lines] == frozen and len(frozen) == 2
    assert len(said) == 1 and "Started again, 1 of at most 1 times." in said[0]
    show = lambda status: None  # noqa: E731
    end = supervise(spec, engine_python, show=show, say=said.append, stall_seconds=120)
    assert end.phase == "complete" and len(said) == 1
