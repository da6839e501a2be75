"""The manual page, made from the commands themselves: `python -m nvckpt.cli.manual > cli/nvckpt.1`."""

import sys
from collections.abc import Iterator
from typing import Any

import typer

from nvckpt.cli.exits import MEANINGS
from nvckpt.cli.main import app
from nvckpt.version import __version__

_INTRODUCTION = """\
Compresses PyTorch checkpoints, and any other files, so that the identical file comes back, on any machine.
No pickle is executed, nothing is rounded. FILE becomes FILE.nvckpt and is kept. What was written is read back, decoded
and compared with the source before it gets its name; a file that is there already is never replaced without -f.
"""

_PATTERNS = """\
With -r a directory stands for the files in it and below: for compress, those that are checkpoints by their content
(torch.save files, safetensors, .distcp and .metadata, pickles, tar and .nemo, GGUF, HDF5, .npy); for the others, those
whose names end in .nvckpt. Symbolic links are passed over. --include takes what fits instead, whatever it holds;
--exclude leaves out files and directories. A GLOB without a slash is tested on the name, one with a slash on the path
below the directory that was named; * also fits a slash.
"""

_EXAMPLES = (
    ("Compress a tree into another place, resume that, and restore it:",
     "nvckpt compress -r runs --output-dir-mirror /archive\n"
     "nvckpt compress -r runs --output-dir-mirror /archive --skip-existing\n"
     "nvckpt decompress -r /archive --output-dir-flat restored"),
    ("In pipes:", "nvckpt compress -c ckpt.pt | ssh host 'cat > ckpt.pt.nvckpt'\n"
     "find . -name '*.pt' -print0 | xargs -0 -n1 -P4 nvckpt compress --rm -q --"),
    ("As the compressor of tar, which adds -d to restore:",
     "tar -I 'nvckpt compress -q -' -cf run.tar.nvckpt run\n"
     "tar -I 'nvckpt compress -q -' -xf run.tar.nvckpt"),
)  # fmt: skip


def page() -> str:
    """Return the page in the language of man(7)."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    group: Any = typer.main.get_command(app)
    commands = {name: command for name, command in group.commands.items() if not command.hidden}
    yield '.\\" Made by `make man` from the commands; changes belong there.'
    yield f'.TH NVCKPT 1 "" "nvckpt {__version__}" "User Commands"'
    yield from _section("NAME", "nvckpt \\- lossless compression of PyTorch checkpoints")
    yield ".SH SYNOPSIS"
    for name, command in commands.items():
        yield from (f".B nvckpt {_escape(name)}", _escape(_synopsis(command)), ".br")
    yield from _section("DESCRIPTION", _escape(_INTRODUCTION), ".PP", _escape(_PATTERNS))
    yield ".SH OPTIONS"
    yield from _options(group)
    yield ".SH COMMANDS"
    for name, command in commands.items():
        yield f".SS nvckpt {_escape(name)}"
        yield from (_escape(" ".join(text.split())) + "\n.PP" for text in command.help.split("\n\n"))
        yield from _options(command)
    yield ".SH EXIT STATUS"
    for code, meaning in MEANINGS.items():
        yield from (".TP", f".B {int(code)}", _escape(meaning))
    yield ".SH ENVIRONMENT"
    yield from _environment(commands)
    yield ".SH EXAMPLES"
    for text, example in _EXAMPLES:
        yield from (".PP", _escape(text), ".PP", ".nf", ".RS", _escape(example), ".RE", ".fi")


def _section(title: str, *lines: str) -> Iterator[str]:
    yield f".SH {title}"
    yield from (line.rstrip("\n") for line in lines)


def _synopsis(command: Any) -> str:
    words = ["[options]"]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            word = parameter.metavar + ("..." if parameter.nargs == -1 else "")
            words.append(word if parameter.required else f"[{word}]")
    return " ".join(words)


def _options(command: Any) -> Iterator[str]:
    for option in command.params:
        if option.param_type_name == "option" and not option.hidden:
            yield from (".TP", _declaration(option), _escape(_text(option)))


def _declaration(option: Any) -> str:
    names = [name for name in (*option.opts, *option.secondary_opts) if name.strip()]
    names.sort(key=lambda name: (name.startswith("--"), name in option.secondary_opts))
    shown = ", ".join(f"\\fB{_escape(name)}\\fR" for name in names)
    takes_value = not (option.is_flag or option.count)
    return f"{shown} \\fI{_escape(option.metavar)}\\fR" if takes_value else shown


def _text(option: Any) -> str:
    text = option.help or ""
    if option.show_default and option.default not in (None, False, ""):
        text += f" Default: {_default(option)}."
    return text + (f" Environment: {option.envvar}." if option.envvar else "")


def _default(option: Any) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    return max(option.opts, key=len).lstrip("-") if option.is_flag else str(option.default)


def _environment(commands: dict[str, Any]) -> Iterator[str]:
    options = {
        option.envvar: max(option.opts, key=len)
        for command in commands.values()
        for option in command.params
        if getattr(option, "envvar", None)
    }
    for variable, name in sorted(options.items()):
        yield from (".TP", f".B {variable}", f"The default of {_escape(name)}.")
    yield from (".TP", ".B NVCKPT_TRACEBACK", "Show the traceback of a defect instead of a sentence.")
    yield from (".TP", ".B NO_COLOR", "Use no colours.")


def _escape(text: str) -> str:
    """Return text in which nothing is a request: a line may not begin with a dot or a quote, and - stays a hyphen."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in escaped.splitlines())


if __name__ == "__main__":
    sys.stdout.write(page())
