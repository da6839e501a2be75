"""The options that commands share, each declared once."""

from typing import Annotated

import typer

Files = Annotated[list[str], typer.Argument(metavar="FILE", help="Files; - is standard input.", show_default=False)]
Output = Annotated[
    str | None, typer.Option("-o", "--output", metavar="PATH", help="Write here; one input only.", show_default=False)
]
Stdout = Annotated[bool, typer.Option("-c", "--stdout", help="Write to standard output.")]
Force = Annotated[bool, typer.Option("-f", "--force", help="Replace outputs, follow links, write data to a terminal.")]
Keep = Annotated[bool, typer.Option("-k/ ", "--keep/--rm", show_default="keep", help="Remove the input after success?")]
Threads = Annotated[
    int, typer.Option("-T", "--threads", min=0, metavar="N", envvar="NVCKPT_THREADS", help="Threads; 0 is one a core.")
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", envvar="NVCKPT_DEVICE", help="auto, cpu or cuda.")]
Codec = Annotated[
    str, typer.Option("--codec", metavar="NAME", help="auto, or one codec for everything; `doctor` lists them.")
]
Level = Annotated[str, typer.Option("--level", metavar="LEVEL", help="fast, default, max, or the codec's number.")]
MaxMemory = Annotated[
    str,
    typer.Option(
        "--max-memory",
        metavar="SIZE",
        envvar="NVCKPT_MAX_MEMORY",
        help="Memory to stay below, such as 2G; by default half of the machine's.",
        show_default=False,
    ),
]
MaxOutput = Annotated[
    str,
    typer.Option("--max-output", metavar="SIZE", help="Refuse archives that restore to more.", show_default=False),
]
Quiet = Annotated[
    int,
    typer.Option(
        "-q", "--quiet", count=True, show_default=False, help="No tables, no warnings; twice: no errors either."
    ),
]
Verbose = Annotated[
    int,
    typer.Option(
        "-v", "--verbose", count=True, show_default=False, help="Say more: every warning, tensor or damaged name."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document instead of words.")]
Progress = Annotated[
    bool | None,
    typer.Option("--progress/--no-progress", help="Progress bar; by default on a terminal.", show_default=False),
]
Strict = Annotated[bool, typer.Option("--strict", help="Fail on files that are not sound checkpoints.")]
Verify = Annotated[bool, typer.Option("--verify/--no-verify", help="Decode what was written before it gets its name.")]
