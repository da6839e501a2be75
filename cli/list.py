"""`nvckpt list`."""

from typing import TYPE_CHECKING

from nvckpt.cli import batch, options, report
from nvckpt.cli.batch import Outcome
from nvckpt.cli.console import Talk
from nvckpt.cli.exits import Exit
from nvckpt.cli.progress import Report
from nvckpt.files import show

if TYPE_CHECKING:
    from nvckpt.outputs import Job


def list_archives(
    files: options.Files,
    recursive: options.Recursive = False,
    include: options.Include = None,
    exclude: options.Exclude = None,
    max_memory: options.MaxMemory = "",
    quiet: options.Quiet = 0,
    verbose: options.Verbose = 0,
    json: options.Json = False,
    jsonl: options.JsonLines = False,
) -> Exit:
    """Show what archives hold, by group; -v shows every tensor, -vv also opaque bytes. Nothing is decoded."""
    from nvckpt.cli.request import Request
    from nvckpt.files import SUFFIX
    from nvckpt.limits import check_memory, parse_size
    from nvckpt.listing import inspect

    memory = parse_size(max_memory)
    check_memory(memory)
    talk = Talk.checked(quiet, verbose, json, jsonl)
    found = Request(files, recursive, include, exclude).find(lambda path: path.endswith(SUFFIX))

    def one(job: "Job", _bar: Report | None) -> Outcome:
        listing = inspect(job.source, memory, models=bool(verbose) or talk.is_data)
        if talk.is_data:
            return Outcome(report.listing_json(listing))
        facts = f"{show(listing.format)}, xxh3-128 {listing.hash}, written by {show(listing.writer)}"
        outcome = Outcome(report.listing_summary(listing), [f"{show(job.source)}: {facts}"], listing.groups)
        if verbose:
            shown = (t for t in listing.tensors if t.dtype or verbose > 1)
            outcome.notes = ["Tensors of a kind below 256 KiB share a frame: their size after is a share of it."]
            outcome.head = [*outcome.head, *(() if quiet else report.tensor_lines(shown))]
        return outcome

    conduct = batch.Conduct("list", recursive or len(files) > 1, progress=False, found=found)
    return batch.run(batch.inputs(found.files), one, talk, conduct)
