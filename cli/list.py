"""`nvckpt list`."""

from typing import Any

from nvckpt.cli import batch, options, report
from nvckpt.cli.console import Talk
from nvckpt.cli.exits import Exit
from nvckpt.files import show


def list_archives(
    files: options.Files,
    max_memory: options.MaxMemory = "",
    quiet: options.Quiet = 0,
    verbose: options.Verbose = 0,
    json: options.Json = False,
) -> Exit:
    """Show what archives hold, by group; -v shows every tensor, -vv also opaque bytes. Nothing is decoded."""
    from nvckpt.limits import check_memory, parse_size
    from nvckpt.listing import inspect

    memory = parse_size(max_memory)
    check_memory(memory)
    talk = Talk(quiet, verbose, json)

    def one(name: str) -> dict[str, Any]:
        listing = inspect(name, memory)
        if not json:
            talk.line(
                f"{show(name)}: {show(listing.format)}, xxh3-128 {listing.hash}, written by {show(listing.writer)}"
            )
        if verbose:
            shown = (t for t in listing.tensors if t.dtype or verbose > 1)
            for line in () if json or quiet else report.tensor_lines(shown):
                talk.line(line)
            talk.note("Tensors of a kind below 256 KiB share a frame: their size after is a share of it.")
        talk.table(report.group_table(listing.groups, listing.bytes_in, listing.bytes_out))
        return report.listing_json(listing) if json else {"ok": True}

    return batch.run("list", files, talk, one)
