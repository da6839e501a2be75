"""`nvckpt decompress`."""

from typing import Any

from nvckpt.cli import batch, options, report
from nvckpt.cli.console import Talk
from nvckpt.cli.exits import Exit, UsageError
from nvckpt.cli.progress import progress as progress_bar
from nvckpt.files import show


def decompress(
    files: options.Files,
    output: options.Output = None,
    stdout: options.Stdout = False,
    force: options.Force = False,
    keep: options.Keep = True,
    device: options.Device = "auto",
    threads: options.Threads = 0,
    max_memory: options.MaxMemory = "",
    max_output: options.MaxOutput = "",
    quiet: options.Quiet = 0,
    verbose: options.Verbose = 0,
    json: options.Json = False,
    progress: options.Progress = None,
) -> Exit:
    """Restore files: FILE.nvckpt becomes FILE, identical to what was compressed."""
    from nvckpt.decompression import DecompressOptions, default_output
    from nvckpt.decompression import decompress as run
    from nvckpt.limits import parse_size

    data_on_stdout = batch.check_outputs(files, output, stdout, force)
    if data_on_stdout and not keep:
        raise UsageError("--rm needs an output file, not standard output")
    if output is None and not stdout and force:
        batch.check_inputs_survive(files, default_output)
    memory, most = parse_size(max_memory), parse_size(max_output)
    chosen = DecompressOptions(device, threads, force, not keep, max_memory=memory, max_output=most)
    talk = Talk(quiet, verbose, json, results_to_stderr=data_on_stdout)

    def one(name: str) -> dict[str, Any]:
        with progress_bar(talk, progress, show(name)) as bar:
            result = run(name, batch.output_for(name, output, stdout), chosen, bar)
        if not talk.quiet and not json:
            talk.line(report.decompress_line(result))
        return report.decompress_json(result)

    return batch.run("decompress", files, talk, one)
