"""`nvckpt decompress`."""

from typing import TYPE_CHECKING

from nvckpt.cli import batch, options, report, rescuing
from nvckpt.cli.batch import Outcome
from nvckpt.cli.console import Talk
from nvckpt.cli.exits import Exit, UsageError
from nvckpt.cli.progress import Report
from nvckpt.cli.verify import verify
from nvckpt.files import show

if TYPE_CHECKING:
    from nvckpt.cli.request import Request
    from nvckpt.decompression import DecompressOptions
    from nvckpt.outputs import Job


def decompress(
    files: options.Files,
    recursive: options.Recursive = False,
    include: options.Include = None,
    exclude: options.Exclude = None,
    skip_existing: options.SkipExisting = False,
    output: options.Output = None,
    stdout: options.Stdout = False,
    output_dir_flat: options.Flat = None,
    output_dir_mirror: options.Mirror = None,
    force: options.Force = False,
    keep: options.Keep = True,
    sparse: options.Sparse = True,
    test: options.Test = False,
    device: options.Device = "auto",
    threads: options.Threads = 0,
    jobs: options.Jobs = 1,
    max_memory: options.MaxMemory = "",
    max_output: options.MaxOutput = "",
    quiet: options.Quiet = 0,
    verbose: options.Verbose = 0,
    json: options.Json = False,
    jsonl: options.JsonLines = False,
    progress: options.Progress = None,
    rescue: options.Rescue = False,
    _decompress: options.Decompress = True,
) -> Exit:
    """Restore files: FILE.nvckpt becomes FILE, identical to what was compressed.

    With -r a directory stands for the files in it whose names end in .nvckpt.
    """
    places = (output, stdout, output_dir_flat, output_dir_mirror)
    if test:
        if any(places) or not keep or skip_existing or rescue:
            raise UsageError("-t writes and removes nothing: drop the options for outputs")
        return verify(
            files,
            recursive=recursive,
            include=include,
            exclude=exclude,
            device=device,
            threads=threads,
            jobs=jobs,
            max_memory=max_memory,
            quiet=quiet,
            verbose=verbose,
            json=json,
            jsonl=jsonl,
            progress=progress,
        )
    from nvckpt.cli.request import Request
    from nvckpt.codecs.device import started
    from nvckpt.decompression import DecompressOptions, default_output
    from nvckpt.files import SUFFIX
    from nvckpt.limits import parse_size, share_memory
    from nvckpt.pipeline import share_threads

    request = Request(files, recursive, include, exclude, *places, force, not keep, skip_existing)
    request.check()
    if rescue:
        rescuing.check(request)
        default_output = rescuing.default_output
    jobs = batch.at_a_time(jobs, files, recursive)
    memory, most = share_memory(parse_size(max_memory), jobs), parse_size(max_output)
    threads = share_threads(threads, jobs)
    chosen = DecompressOptions(device, threads, force, not keep, max_memory=memory, max_output=most, sparse=sparse)
    talk = Talk.checked(quiet, verbose, json, jsonl, request.uses_stdout)
    found = request.find(lambda path: path.endswith(SUFFIX))
    conduct = batch.Conduct(
        "decompress",
        recursive or len(files) > 1,
        # Outputs that are joined come in the order of their inputs.
        workers=1 if request.uses_stdout or started() else jobs,
        progress=progress,
        found=found,
    )

    def one(job: "Job", bar: Report | None) -> Outcome:
        if rescue:
            return rescuing.one(request, job, chosen, bar, verbose)
        return _decompress_one(request, job, chosen, bar)

    return batch.run(request.jobs(found.files, default_output), one, talk, conduct)


def _decompress_one(request: "Request", job: "Job", chosen: "DecompressOptions", bar: Report | None) -> Outcome:
    from nvckpt.decompression import decompress as run

    if job.output is not None and request.is_done(job, archive=job.source, original=job.output):
        return batch.skipped(job.source, "exists", f"{show(job.output)} exists")
    request.places.make(job)
    result = run(job.source, job.output, chosen, bar)
    return Outcome(report.decompress_json(result), tail=report.decompress_line(result), stages=result.stages)
