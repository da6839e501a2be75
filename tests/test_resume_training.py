"""The example that trains, is killed, resumes from its archive and reaches the same loss, bit for bit."""

import signal
import subprocess
import sys
from pathlib import Path

import torch

import nvckpt

FOLDER = Path(__file__).parents[1] / "sample_data"
STEPS, EVERY, DEATH = 12, 3, 7


def test_killed_training_resumes_to_the_same_loss(tmp_path, monkeypatch, capsys):
    """Killed two steps behind a checkpoint that may still be in writing; the archive is whole, and older or newer."""
    monkeypatch.syspath_prepend(str(FOLDER))
    from resume_training import train

    command = [sys.executable, FOLDER / "resume_training.py", "--folder", tmp_path / "killed"]
    sizes = ["--steps", str(STEPS), "--every", str(EVERY), "--die-at", str(DEATH)]
    assert subprocess.run([*command, *sizes], check=False).returncode == -signal.SIGKILL
    # What a kill leaves behind is a temporary file at most, never a half archive under the name.
    assert nvckpt.verify(tmp_path / "killed" / "last.nvckpt").damage == ()
    last = DEATH // EVERY * EVERY
    assert nvckpt.load(tmp_path / "killed" / "last.nvckpt")["step"] in (last, last - EVERY)
    (tmp_path / "whole").mkdir()
    threads = torch.get_num_threads()
    resumed = train(tmp_path / "killed", STEPS, EVERY, None)
    assert "resumed at step" in capsys.readouterr().out
    whole = train(tmp_path / "whole", STEPS, EVERY, None)
    assert "resumed" not in capsys.readouterr().out
    torch.set_num_threads(threads)
    assert resumed.hex() == whole.hex()
    states = [nvckpt.load(tmp_path / name / "last.nvckpt") for name in ("killed", "whole")]
    assert all(torch.equal(states[0]["model"][name], value) for name, value in states[1]["model"].items())
