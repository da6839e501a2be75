"""One command over many inputs: an input that fails is reported and the rest go on."""

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nvckpt.cli import report
from nvckpt.cli.console import Talk
from nvckpt.cli.exits import Exit
from nvckpt.cli.progress import Report, overall, progress
from nvckpt.cli.summary import Tally
from nvckpt.errors import KNOWN_ERRORS, sentence_of
from nvckpt.files import show

if TYPE_CHECKING:
    from nvckpt.outputs import Job
    from nvckpt.results import GroupSize
    from nvckpt.stages import Stage
    from nvckpt.trees import Finds, Found


@dataclass(slots=True)
class Outcome:
    """What one input gave, as data: it may come from another process.

    `entry` is its JSON; `head`, the table of `groups`, `tail` and, with -v, `stages` are for people, in this order.
    """

    entry: dict[str, Any]
    head: Iterable[str] = ()
    groups: "Sequence[GroupSize]" = ()
    tail: str = ""
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    errors: Sequence[str] = ()
    stages: "Sequence[Stage]" = ()


Work = Callable[["Job", Report | None], Outcome]
"""Handles one input; the errors that it raises are reported."""


@dataclass(frozen=True, slots=True)
class Conduct:
    """How a batch goes: `tables` shows one for each file, `workers` is how many files are worked on at a time."""

    command: str
    is_batch: bool = False
    tables: bool = True
    workers: int = 1
    progress: bool | None = None
    found: "Finds" = field(kw_only=True)


def at_a_time(jobs: int, names: Sequence[str], recursive: bool) -> int:
    """Return how many files may be worked on at a time, as far as the command line tells; they share the cores."""
    return jobs if recursive else min(jobs, max(1, len(names)))


def inputs(files: "Sequence[Found]") -> "list[Job]":
    """Return the jobs of a command that writes nothing."""
    from nvckpt.outputs import Job

    return [Job(file.path, error=file.error) for file in files]


def run(jobs: "Sequence[Job]", work: Work, talk: Talk, conduct: Conduct) -> Exit:
    """Call `work` on each input; returns FAILED when one failed or was not `ok`."""
    tally = Tally(conduct.command)
    entries: list[dict[str, Any] | None] = [None] * (len(jobs) if talk.as_json else 0)
    # Closed before a signal is reported: the workers have cleaned up by then.
    with contextlib.closing(_outcomes(jobs, work, talk, conduct)) as outcomes:
        for number, outcome in outcomes:
            _say(outcome, talk, conduct)
            tally.add(jobs[number].source, outcome.entry, outcome.groups)
            if talk.as_json:
                entries[number] = outcome.entry
    if talk.as_json:
        talk.document(report.document(conduct.command, [entry for entry in entries if entry is not None]))
    elif conduct.is_batch and not talk.as_lines:
        tally.say(talk, conduct.found)
    return Exit.FAILED if tally.failed else Exit.OK


def _outcomes(jobs: "Sequence[Job]", work: Work, talk: Talk, conduct: Conduct) -> Generator[tuple[int, Outcome]]:
    if conduct.workers > 1 and len(jobs) > 1:
        yield from _in_workers(jobs, work, talk, conduct)
        return
    for number, job in enumerate(jobs):
        place = f"[{number + 1}/{len(jobs)}] " if len(jobs) > 1 else ""
        with progress(talk, conduct.progress, place + show(job.source)) as bar:
            outcome = _attempt(job, work, bar)
        yield number, outcome


def _in_workers(jobs: "Sequence[Job]", work: Work, talk: Talk, conduct: Conduct) -> Generator[tuple[int, Outcome]]:
    """Work on several files at a time; `.metadata` files, which are last, when all others are finished."""
    from nvckpt import batch

    last = sum(job.is_last for job in jobs)
    first_of_last = len(jobs) - last
    with overall(talk, conduct.progress, len(jobs)) as step:
        for start, part in ((0, jobs[:first_of_last]), (first_of_last, jobs[first_of_last:])):
            for number, outcome in batch.run(part, lambda job: _attempt(job, work, None), conduct.workers):
                step()
                yield start + number, _lost(part[number], outcome) if isinstance(outcome, batch.Lost) else outcome


def _attempt(job: "Job", work: Work, bar: Report | None) -> Outcome:
    try:
        if job.error is not None:
            raise job.error
        return work(job, bar)
    except BrokenPipeError:
        raise  # nobody reads the words any more; the archive is not to blame
    except KNOWN_ERRORS as error:
        return Outcome(report.error_json(job.source, error), errors=[f"{show(job.source)}: {sentence_of(error)}"])
    except Exception as error:  # noqa: BLE001 - a defect in one input must not stop the rest
        return _failure(job, "internal", internal(error))


def _lost(job: "Job", lost: Any) -> Outcome:
    return _failure(job, "internal", lost.reason)


def _failure(job: "Job", code: str, message: str) -> Outcome:
    entry = {**report.path_json("input", job.source), "ok": False, "error": {"code": code, "message": message}}
    return Outcome(entry, errors=[f"{show(job.source)}: {message}"])


def _say(outcome: Outcome, talk: Talk, conduct: Conduct) -> None:
    for text in outcome.errors:
        talk.error(text)
    for text in outcome.warnings:
        talk.warning(text)
    for text in outcome.notes:
        talk.note(text)
    talk.record(conduct.command, outcome.entry)
    if talk.is_data:
        return
    for line in outcome.head:
        talk.line(line)
    if outcome.groups and conduct.tables:
        talk.table(report.group_table(outcome.groups, outcome.entry["bytes_in"], outcome.entry["bytes_out"]))
    if outcome.tail and not talk.quiet:
        talk.line(outcome.tail)
    if outcome.stages and talk.verbose:
        talk.table(report.stage_table(outcome.stages, outcome.entry["seconds"]))


def skipped(source: str, reason: str, sentence: str) -> Outcome:
    """Return the outcome of an input that needs no work; `reason` is for scripts."""
    entry = {**report.path_json("input", source), "ok": True, "skipped": True, "reason": reason, "error": None}
    return Outcome(entry, notes=[f"{show(source)}: {sentence}, skipped"])


def internal(error: Exception) -> str:
    """Return the sentence for a defect of nvckpt; with NVCKPT_TRACEBACK set, the traceback is raised instead."""
    if os.environ.get("NVCKPT_TRACEBACK"):
        raise error
    return f"internal error ({type(error).__name__}: {error}); please report it, with NVCKPT_TRACEBACK=1 set"
