"""`nvckpt verify`."""

from typing import TYPE_CHECKING

from nvckpt.cli import batch, options, report
from nvckpt.cli.batch import Outcome
from nvckpt.cli.console import Talk
from nvckpt.cli.exits import Exit
from nvckpt.cli.progress import Report
from nvckpt.files import show

if TYPE_CHECKING:
    from nvckpt.outputs import Job


def verify(
    files: options.Files,
    recursive: options.Recursive = False,
    include: options.Include = None,
    exclude: options.Exclude = None,
    device: options.Device = "auto",
    threads: options.Threads = 0,
    jobs: options.Jobs = 1,
    max_memory: options.MaxMemory = "",
    quiet: options.Quiet = 0,
    verbose: options.Verbose = 0,
    json: options.Json = False,
    jsonl: options.JsonLines = False,
    progress: options.Progress = None,
) -> Exit:
    """Decode archives without writing anything, and name what is damaged; -v names every tensor."""
    from nvckpt.cli.request import Request
    from nvckpt.codecs.device import started
    from nvckpt.decompression import DecompressOptions
    from nvckpt.decompression import verify as run
    from nvckpt.files import SUFFIX
    from nvckpt.limits import parse_size, share_memory
    from nvckpt.pipeline import share_threads

    jobs = batch.at_a_time(jobs, files, recursive)
    memory = share_memory(parse_size(max_memory), jobs)
    chosen = DecompressOptions(device, share_threads(threads, jobs), max_memory=memory)
    talk = Talk.checked(quiet, verbose, json, jsonl)
    found = Request(files, recursive, include, exclude).find(lambda path: path.endswith(SUFFIX))
    conduct = batch.Conduct(
        "verify", recursive or len(files) > 1, workers=1 if started() else jobs, progress=progress, found=found
    )

    def one(job: "Job", bar: Report | None) -> Outcome:
        result = run(job.source, chosen, bar)
        errors = [f"{show(job.source)}: {damage.sentence(None if verbose else 3)}" for damage in result.damage]
        return Outcome(
            report.decompress_json(result), tail=report.decompress_line(result), errors=errors, stages=result.stages
        )

    return batch.run(batch.inputs(found.files), one, talk, conduct)
