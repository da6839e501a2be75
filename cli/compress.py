"""`nvckpt compress`."""

from typing import Any

from nvckpt.cli import batch, options, report
from nvckpt.cli.console import Talk
from nvckpt.cli.exits import Exit, UsageError
from nvckpt.cli.progress import progress as progress_bar
from nvckpt.files import show


def compress(
    files: options.Files,
    output: options.Output = None,
    stdout: options.Stdout = False,
    force: options.Force = False,
    keep: options.Keep = True,
    codec: options.Codec = "auto",
    level: options.Level = "default",
    device: options.Device = "auto",
    threads: options.Threads = 0,
    max_memory: options.MaxMemory = "",
    verify: options.Verify = True,
    strict: options.Strict = False,
    quiet: options.Quiet = 0,
    verbose: options.Verbose = 0,
    json: options.Json = False,
    progress: options.Progress = None,
) -> Exit:
    """Compress checkpoints: FILE becomes FILE.nvckpt, and FILE is kept."""
    from nvckpt.codecs.registry import parse_level
    from nvckpt.compression import CompressOptions, already_compressed, default_output
    from nvckpt.compression import compress as run
    from nvckpt.limits import parse_size

    data_on_stdout = batch.check_outputs(files, output, stdout, force)
    if data_on_stdout and not keep:
        raise UsageError("--rm needs an output file, not standard output")
    if data_on_stdout and len(files) > 1:
        raise UsageError("archives cannot be joined: standard output takes one input")
    memory = parse_size(max_memory)
    chosen = CompressOptions(
        codec, parse_level(level), device, threads, force, verify, strict, not keep, max_memory=memory
    )
    talk = Talk(quiet, verbose, json, results_to_stderr=data_on_stdout)

    default_name = output is None and not stdout
    if default_name and force:
        batch.check_inputs_survive(files, default_output)

    def one(name: str) -> dict[str, Any]:
        if default_name and not force and already_compressed(name):
            talk.note(f"{show(name)}: compressed already, skipped")
            return {**report.path_json("input", name), "ok": True, "skipped": True, "error": None}
        with progress_bar(talk, progress, show(name)) as bar:
            result = run(name, batch.output_for(name, output, stdout), chosen, bar)
        for warning in result.warnings[: None if verbose else 1]:
            talk.warning(f"{show(name)}: {warning}")
        talk.table(report.group_table(result.groups, result.bytes_in, result.bytes_out))
        if not talk.quiet and not json:
            talk.line(report.compress_line(result))
        return report.compress_json(result)

    return batch.run("compress", files, talk, one)
