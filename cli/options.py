"""The options that commands share, each declared once, in the panels that the help shows."""

from typing import Annotated, Any

import typer

FILES = "Which files"
PLACES = "Where to"
WORK = "How"
WORDS = "What is said"


def _devices() -> list[str]:
    from nvckpt.codecs.device import DEVICES

    return list(DEVICES)


def _codecs() -> list[str]:
    from nvckpt.codecs.registry import names

    return names()


def _levels() -> list[str]:
    from nvckpt.codecs.registry import LEVEL_NAMES

    return list(LEVEL_NAMES)


def _files(*declarations: str, help: str, **more: Any) -> Any:  # noqa: A002 - Typer's name
    return typer.Option(*declarations, help=help, rich_help_panel=FILES, show_default=False, **more)


def _places(*declarations: str, help: str, **more: Any) -> Any:  # noqa: A002
    return typer.Option(*declarations, help=help, rich_help_panel=PLACES, **more)


def _work(*declarations: str, help: str, **more: Any) -> Any:  # noqa: A002
    return typer.Option(*declarations, help=help, rich_help_panel=WORK, **more)


def _words(*declarations: str, help: str, **more: Any) -> Any:  # noqa: A002
    return typer.Option(*declarations, help=help, rich_help_panel=WORDS, show_default=False, **more)


Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE", help="Files; - is standard input; with -r directories, too.", show_default=False),
]
Recursive = Annotated[bool, _files("-r", "--recursive", help="Take the files in directories, links excepted.")]
Include = Annotated[
    list[str] | None, _files("--include", metavar="GLOB", help="Only files that fit, whatever they hold; may repeat.")
]
Exclude = Annotated[
    list[str] | None, _files("--exclude", metavar="GLOB", help="Not the files and directories that fit; may repeat.")
]
ExcludeCompressed = Annotated[
    bool, _files("--exclude-compressed", help="Skip gzip, zstd, xz, lz4, bzip2 and 7z files.")
]
SkipExisting = Annotated[bool, _files("--skip-existing", help="Skip what is done already: resume a batch.")]

Output = Annotated[
    str | None, _places("-o", "--output", metavar="PATH", help="Write here; one input only.", show_default=False)
]
Stdout = Annotated[bool, _places("-c", "--stdout", help="Write to standard output.", show_default=False)]
Flat = Annotated[
    str | None, _places("--output-dir-flat", metavar="DIR", help="Write all outputs into DIR.", show_default=False)
]
Mirror = Annotated[
    str | None,
    _places("--output-dir-mirror", metavar="DIR", help="Write below DIR, in directories as given.", show_default=False),
]
Force = Annotated[
    bool,
    _places("-f", "--force", help="Replace outputs, follow links, write data to a terminal.", show_default=False),
]
Keep = Annotated[bool, _places("-k/ ", "--keep/--rm", show_default="keep", help="Remove the input after success?")]
Sparse = Annotated[bool, _places("--sparse/--no-sparse", help="Holes for blocks of zeros, in files.")]

Codec = Annotated[
    str,
    _work("--codec", metavar="NAME", help="auto, or one for everything; `doctor` lists them.", autocompletion=_codecs),
]
Level = Annotated[
    str, _work("--level", metavar="LEVEL", help="fast, default, max, or the codec's -1 to -9.", autocompletion=_levels)
]
Device = Annotated[
    str,
    _work(
        "--device", metavar="NAME", envvar="NVCKPT_DEVICE", help="auto, cpu, cuda or cuda:N.", autocompletion=_devices
    ),
]
Threads = Annotated[
    int, _work("-T", "--threads", min=0, metavar="N", envvar="NVCKPT_THREADS", help="Threads a file; 0 uses all cores.")
]
Jobs = Annotated[int, _work("-j", "--jobs", min=1, metavar="N", help="Files at a time; one on a GPU.")]
MaxMemory = Annotated[
    str,
    _work(
        "--max-memory",
        metavar="SIZE",
        envvar="NVCKPT_MAX_MEMORY",
        help="Memory to stay below, such as 2G; by default half of the machine's.",
        show_default=False,
    ),
]
MaxOutput = Annotated[
    str, _work("--max-output", metavar="SIZE", help="Refuse archives that restore to more.", show_default=False)
]
Verify = Annotated[bool, _work("--verify/--no-verify", help="Decode what was written before it gets its name.")]
Strict = Annotated[bool, _work("--strict", help="Fail on files that are not sound checkpoints.", show_default=False)]
Test = Annotated[bool, _work("-t", "--test", help="Write nothing: the same as `verify`.", show_default=False)]
Rescue = Annotated[
    bool, _work("--rescue", help="Write what is left of a damaged archive, as FILE.rescued.", show_default=False)
]
Decompress = Annotated[bool, typer.Option("-d", "--decompress", hidden=True, help="Decompress, as tar asks for.")]

Quiet = Annotated[int, _words("-q", "--quiet", count=True, help="No tables, no warnings; twice: no errors either.")]
Verbose = Annotated[int, _words("-v", "--verbose", count=True, help="Say more: every warning, tensor or damaged name.")]
Json = Annotated[bool, _words("--json", help="One JSON document instead of words.")]
JsonLines = Annotated[bool, _words("--jsonl", help="A line of JSON a file, as it is finished.")]
Progress = Annotated[bool | None, _words("--progress/--no-progress", help="Progress bar; by default on a terminal.")]
