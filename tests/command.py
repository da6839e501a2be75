"""The program as a user calls it, for the tests of its conduct."""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

from nvckpt.cli.main import main

# Loaded here once, so that the forks do not load them each.
for _name in ("compression", "decompression", "listing"):
    importlib.import_module(f"nvckpt.{_name}")
for _name in ("rich.table", "rich.console", "zstandard", "typer._adapters"):
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)

PROGRAM = str(Path(sys.executable).with_name("nvckpt"))
SECONDS = 60


@dataclass
class Done:
    """What a finished command left: exit code and both outputs, as bytes and as text."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self):
        return json.loads(self.out)


class Shell:
    """Runs nvckpt in a folder; every call checks that no traceback and no temporary file shows.

    A command runs in a fork of the test process, which saves the start of an interpreter; with `real`, or with
    options of subprocess, the installed program is started.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *args, stdin=b"", env=None, check=None, umask=0o022, real=False, **options) -> Done:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("NVCKPT_")}
        environment = {**clean, "COLUMNS": "100", **(env or {})}
        arguments = [os.fsencode(arg) for arg in args]
        run = self._start if real or options else self._fork
        code, out, err = run(arguments, stdin, environment, umask, **options)
        done = Done(code, out, err.decode("utf-8", "replace"))
        assert "Traceback" not in done.err
        assert "internal error" not in done.err
        assert not self.litter()
        assert check is None or done.code == check, done
        return done

    def sh(self, script: str, **options) -> Done:
        """Run a line of Bash in which $0 is the program."""
        return self("-c", script, PROGRAM, program=["bash"], **options)

    def _start(self, args, stdin, env, umask, program=(PROGRAM,), stdout=subprocess.PIPE):
        done = subprocess.run(
            [*program, *args],
            cwd=self.folder,
            env=env,
            input=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            umask=umask,
            timeout=SECONDS,
            check=False,
        )
        return done.returncode, done.stdout or b"", done.stderr

    def _fork(self, args, stdin, env, umask):
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(stdin)
            files[0].seek(0)
            child = os.fork()
            if child == 0:
                os._exit(self._run_in_child(args, env, umask, files))
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            for file in files:
                file.seek(0)
            return code, files[1].read(), files[2].read()

    def _run_in_child(self, args, env, umask, files) -> int:
        try:
            signal.alarm(SECONDS)
            for number, file in enumerate(files):
                os.dup2(file.fileno(), number)
            os.chdir(self.folder)
            os.umask(umask)
            os.environ.clear()
            os.environ.update(env)
            sys.stdin = open(0, closefd=False)  # noqa: SIM115 - open until the child ends
            sys.stdout = open(1, "w", closefd=False, encoding="utf-8")  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False, encoding="utf-8", buffering=1)  # noqa: SIM115
            sys.argv = ["nvckpt", *map(os.fsdecode, args)]
            main()
        except SystemExit as end:
            sys.stdout.flush()
            return int(end.code or 0)
        except BaseException:  # noqa: BLE001 - nothing may return into pytest
            traceback.print_exc()
        return 70

    def litter(self) -> list[str]:
        """Temporary files left in the folder, at any depth."""
        return [str(path) for path in self.folder.rglob("*.tmp")]

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())
