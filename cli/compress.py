"""`nvckpt compress`."""

from typing import TYPE_CHECKING

from nvckpt.cli import batch, options, report
from nvckpt.cli.batch import Outcome
from nvckpt.cli.console import Talk
from nvckpt.cli.decompress import decompress
from nvckpt.cli.exits import Exit, UsageError
from nvckpt.cli.progress import Report
from nvckpt.files import show

if TYPE_CHECKING:
    from nvckpt.cli.request import Request
    from nvckpt.compression import CompressOptions
    from nvckpt.outputs import Job


def compress(
    files: options.Files,
    recursive: options.Recursive = False,
    include: options.Include = None,
    exclude: options.Exclude = None,
    exclude_compressed: options.ExcludeCompressed = False,
    skip_existing: options.SkipExisting = False,
    output: options.Output = None,
    stdout: options.Stdout = False,
    output_dir_flat: options.Flat = None,
    output_dir_mirror: options.Mirror = None,
    force: options.Force = False,
    keep: options.Keep = True,
    codec: options.Codec = "auto",
    level: options.Level = "default",
    device: options.Device = "auto",
    threads: options.Threads = 0,
    jobs: options.Jobs = 1,
    max_memory: options.MaxMemory = "",
    verify: options.Verify = True,
    strict: options.Strict = False,
    quiet: options.Quiet = 0,
    verbose: options.Verbose = 0,
    json: options.Json = False,
    jsonl: options.JsonLines = False,
    progress: options.Progress = None,
    decompress_instead: options.Decompress = False,
) -> Exit:
    """Compress checkpoints: FILE becomes FILE.nvckpt, and FILE is kept.

    With -r a directory stands for the checkpoints in it, told by their content; index files and the like stay.
    """
    if decompress_instead:
        return decompress(
            files,
            recursive=recursive,
            include=include,
            exclude=exclude,
            skip_existing=skip_existing,
            output=output,
            stdout=stdout,
            output_dir_flat=output_dir_flat,
            output_dir_mirror=output_dir_mirror,
            force=force,
            keep=keep,
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
    from nvckpt.codecs.registry import parse_level
    from nvckpt.compression import CompressOptions, default_output
    from nvckpt.limits import parse_size, share_memory
    from nvckpt.pipeline import share_threads
    from nvckpt.trees import is_checkpoint

    places = (output, stdout, output_dir_flat, output_dir_mirror)
    request = Request(files, recursive, include, exclude, *places, force, not keep, skip_existing)
    request.check()
    if request.uses_stdout and len(files) > 1:
        raise UsageError("archives cannot be joined: standard output takes one input")
    jobs = batch.at_a_time(jobs, files, recursive)
    threads, memory = share_threads(threads, jobs), share_memory(parse_size(max_memory), jobs)
    chosen = CompressOptions(
        codec, parse_level(level), device, threads, force, verify, strict, not keep, max_memory=memory
    )
    talk = Talk.checked(quiet, verbose, json, jsonl, request.uses_stdout)
    found = request.find(is_checkpoint)
    listed = request.jobs(found.files, default_output)
    conduct = batch.Conduct(
        "compress",
        is_batch := recursive or len(files) > 1,
        tables=not is_batch or bool(verbose),
        workers=1 if started() else jobs,
        progress=progress,
        found=found,
    )

    def one(job: "Job", bar: Report | None) -> Outcome:
        skip = _skip(request, job, exclude_compressed)
        return skip or _compress(request, job, chosen, bar, 1 if not verbose else None, not conduct.tables)

    return batch.run(listed, one, talk, conduct)


def _skip(request: "Request", job: "Job", exclude_compressed: bool) -> Outcome | None:
    """Return the outcome of a file that is not to be compressed."""
    from nvckpt.compression import already_compressed
    from nvckpt.trees import is_compressed

    if not request.names_outputs:
        return None
    if not request.force and already_compressed(job.source):
        return batch.skipped(job.source, "compressed", "compressed already")
    if exclude_compressed and is_compressed(job.source):
        return batch.skipped(job.source, "compressed", "compressed already, though not by nvckpt")
    if job.output is not None and request.is_done(job, archive=job.output, original=job.source):
        return batch.skipped(job.source, "exists", f"{show(job.output)} exists")
    return None


def _compress(
    request: "Request", job: "Job", chosen: "CompressOptions", bar: Report | None, most: int | None, with_sizes: bool
) -> Outcome:
    from nvckpt.compression import compress as run

    request.places.make(job)
    result = run(job.source, job.output, chosen, bar)
    warnings = [f"{show(job.source)}: {warning}" for warning in result.warnings[:most]]
    line = report.compress_line(result, with_sizes)
    return Outcome(
        report.compress_json(result), groups=result.groups, tail=line, warnings=warnings, stages=result.stages
    )
