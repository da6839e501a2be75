"""`nvckpt verify`."""

from typing import Any

from nvckpt.cli import batch, options, report
from nvckpt.cli.console import Talk
from nvckpt.cli.exits import Exit
from nvckpt.cli.progress import progress as progress_bar
from nvckpt.files import show


def verify(
    files: options.Files,
    device: options.Device = "auto",
    threads: options.Threads = 0,
    max_memory: options.MaxMemory = "",
    quiet: options.Quiet = 0,
    verbose: options.Verbose = 0,
    json: options.Json = False,
    progress: options.Progress = None,
) -> Exit:
    """Decode archives without writing anything, and name what is damaged; -v names every tensor."""
    from nvckpt.decompression import DecompressOptions
    from nvckpt.decompression import verify as run
    from nvckpt.limits import parse_size

    chosen = DecompressOptions(device, threads, max_memory=parse_size(max_memory))
    talk = Talk(quiet, verbose, json)

    def one(name: str) -> dict[str, Any]:
        with progress_bar(talk, progress, show(name)) as bar:
            result = run(name, chosen, bar)
        for damage in result.damage:
            talk.error(f"{show(name)}: {damage.sentence(None if verbose else 3)}")
        if not talk.quiet and not json:
            talk.line(report.decompress_line(result))
        return report.decompress_json(result)

    return batch.run("verify", files, talk, one)
