"""The program: commands, signals, and exceptions turned into exit codes."""

import contextlib
import io
import os
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from nvckpt.cli import batch
from nvckpt.cli.bench import bench
from nvckpt.cli.compress import compress
from nvckpt.cli.decompress import decompress
from nvckpt.cli.diff import diff
from nvckpt.cli.doctor import doctor
from nvckpt.cli.exits import Exit, Terminated, UsageError
from nvckpt.cli.extract import extract
from nvckpt.cli.levels import LevelCommand
from nvckpt.cli.list import list_archives
from nvckpt.cli.plan import plan
from nvckpt.cli.verify import verify
from nvckpt.version import __version__

# The shell sets it when it asks what a word could become; there are no arguments then.
_COMPLETION = "_NVCKPT_COMPLETE"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

app = typer.Typer(
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"nvckpt {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("-V", "--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Compress PyTorch checkpoints losslessly: the identical file comes back, on any machine."""


app.command(cls=LevelCommand)(compress)
app.command()(decompress)
app.command("list")(list_archives)
app.command("info", hidden=True)(list_archives)
app.command()(verify)
app.command("test", hidden=True)(verify)
app.command()(extract)
app.command()(diff)
app.command(cls=LevelCommand)(bench)
app.command()(plan)
app.command()(doctor)


def main() -> None:
    """Run the command line; every way out is an exit code of `Exit`."""
    # NumPy's linear algebra would start threads of its own inside each of ours, and wait for them busily.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for number in _SIGNALS:
        # Ignored from outside means `nohup`, which is meant.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    sys.unraisablehook = _stop_once_more
    _prepare_streams()
    code = _run()
    _ignore_signals()
    sys.exit(code)


def _prepare_streams() -> None:
    """Make printing safe: a character that the locale lacks is escaped, and a closed standard error is no output."""
    if sys.stderr is None:
        # `print(file=None)` would print to standard output, into the data.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - open until the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run() -> int:
    from nvckpt.errors import KNOWN_ERRORS, InvalidRequestError, code_of, sentence_of
    from nvckpt.files import show

    try:
        if len(sys.argv) == 1 and _COMPLETION not in os.environ:
            app(args=["--help"], standalone_mode=False)
            return Exit.USAGE
        result = app(standalone_mode=False)
        if result == Exit.INTERRUPTED:
            # Typer made this of KeyboardInterrupt.
            return _fail("interrupted", Exit.INTERRUPTED)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (UsageError, InvalidRequestError) as error:
        return _fail(str(error), Exit.USAGE)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "nvckpt"
        return _fail(f"{error.format_message()} ({command} --help tells more)", Exit.USAGE)
    except BrokenPipeError:
        # The reader left; Python would complain once more while closing.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except KNOWN_ERRORS as error:
        named = f"{show(error.filename)}: " if isinstance(error, OSError) and error.filename else ""
        return _fail(named + sentence_of(error), Exit.USAGE if code_of(error) == "usage" else Exit.FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", Exit.INTERRUPTED)
    except Terminated:
        return _fail("terminated", Exit.TERMINATED)
    except Exception as error:  # noqa: BLE001 - people get a sentence, developers NVCKPT_TRACEBACK
        return _fail(batch.internal(error), Exit.FAILED)
    return int(result or Exit.OK)


def _fail(sentence: str, code: Exit) -> int:
    print(f"nvckpt: {sentence}", file=sys.stderr)
    return code


def _stop(number: int, _frame: FrameType | None) -> None:
    """Raise what the signal means; a second one must not break into the cleaning up."""
    _ignore_signals()
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Terminated


def _ignore_signals() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in (*_SIGNALS, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def _stop_once_more(lost: "sys.UnraisableHookArgs") -> None:
    """Raise a signal's exception again when it came inside a callback, where Python prints and drops it.

    A timer does it a moment later: raised in this very hook it would be dropped again.
    """
    if not isinstance(lost.exc_value, KeyboardInterrupt | Terminated):
        sys.__unraisablehook__(lost)
    elif not sys.is_finalizing():
        again = signal.SIGINT if isinstance(lost.exc_value, KeyboardInterrupt) else signal.SIGTERM
        signal.signal(signal.SIGALRM, lambda _number, frame: _stop(again, frame))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
