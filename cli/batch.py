"""One command over many inputs: an input that fails is reported and the rest go on."""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from nvckpt.cli import report
from nvckpt.cli.console import Talk
from nvckpt.cli.exits import Exit, UsageError
from nvckpt.errors import KNOWN_ERRORS, InvalidRequestError, sentence_of
from nvckpt.files import PIPE, show

Work = Callable[[str], dict[str, Any]]
"""Handles one input, prints its words, and returns its JSON entry."""


def run(command: str, names: Sequence[str], talk: Talk, work: Work) -> Exit:
    """Call `work` on each input; returns FAILED when one failed or was not `ok`."""
    results = []
    for name in names:
        try:
            results.append(work(name))
        except BrokenPipeError:
            raise  # nobody reads the words any more; the archive is not to blame
        except KNOWN_ERRORS as error:
            talk.error(f"{show(name)}: {sentence_of(error)}")
            results.append(report.error_json(name, error))
        except Exception as error:  # noqa: BLE001 - a defect in one input must not stop the rest
            talk.error(f"{show(name)}: {internal(error)}")
            failure = {"code": "internal", "message": internal(error)}
            results.append({**report.path_json("input", name), "ok": False, "error": failure})
    if talk.as_json:
        talk.document(report.document(command, results))
    return Exit.OK if all(result["ok"] for result in results) else Exit.FAILED


def internal(error: Exception) -> str:
    """Return the sentence for a defect of nvckpt; with NVCKPT_TRACEBACK set, the traceback is raised instead."""
    if os.environ.get("NVCKPT_TRACEBACK"):
        raise error
    return f"internal error ({type(error).__name__}: {error}); please report it, with NVCKPT_TRACEBACK=1 set"


def output_for(name: str, output: str | None, to_stdout: bool) -> str | None:
    """Return the output asked for: `-` when bytes go to standard output, None for the default name."""
    return PIPE if to_stdout or (output is None and name == PIPE) else output


def check_outputs(names: Sequence[str], output: str | None, to_stdout: bool, force: bool) -> bool:
    """UsageError for what contradicts itself; tells whether standard output carries data."""
    if output is not None and (to_stdout or len(names) > 1):
        raise UsageError("-o takes one input, and not together with -c")
    if list(names).count(PIPE) > 1:
        raise UsageError("standard input can be read only once")
    uses_stdout = any(output_for(name, output, to_stdout) == PIPE for name in names)
    if uses_stdout and len(names) > 1 and not to_stdout:
        raise UsageError("with several inputs, - needs -c")
    if uses_stdout and not force and sys.stdout is not None and sys.stdout.isatty():
        raise UsageError("standard output is a terminal; redirect it, or use -f")
    return uses_stdout


def check_inputs_survive(names: Sequence[str], default_output: Callable[[str], str]) -> None:
    """UsageError when one input's output, under its default name, would replace another input."""
    outputs: dict[str, str] = {}
    for name in names:
        with contextlib.suppress(InvalidRequestError):  # reported when its turn comes
            outputs[os.path.realpath(default_output(name))] = name
    for name in names:
        maker = outputs.get(os.path.realpath(name))
        if maker is not None and name != PIPE:
            raise UsageError(f"the output of {show(maker)} would replace the input {show(name)}")
