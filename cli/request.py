"""From the command line to a list of files and outputs; what contradicts itself is a usage error before any work."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nvckpt.cli.exits import UsageError
from nvckpt.files import PIPE, show
from nvckpt.outputs import Job, Places, is_done, plan
from nvckpt.trees import Finds, Found, Pick, Selection, find, in_order


@dataclass(frozen=True, slots=True)
class Request:
    """Files, and where their outputs go, as typed; for commands that write nothing, only files."""

    names: Sequence[str]
    recursive: bool = False
    include: Sequence[str] | None = None
    exclude: Sequence[str] | None = None
    output: str | None = None
    stdout: bool = False
    flat: str | None = None
    mirror: str | None = None
    force: bool = False
    remove: bool = False
    skip_existing: bool = False

    @property
    def places(self) -> Places:
        """Where outputs go that have no name of their own."""
        return Places(self.flat, self.mirror)

    @property
    def names_outputs(self) -> bool:
        """Tell whether outputs get the default name, beside the input or in a directory."""
        return self.output is None and not self.stdout

    @property
    def uses_stdout(self) -> bool:
        """Tell whether standard output carries data."""
        return any(self._given(name) == PIPE for name in self.names)

    def find(self, pick: Pick) -> Finds:
        """Return the files; `pick` decides in directories."""
        selection = Selection(self.recursive, tuple(self.include or ()), tuple(self.exclude or ()), self.force)
        return find(self.names, selection, pick, self.places.directory)

    def jobs(self, files: Sequence[Found], beside: Callable[[str], str]) -> list[Job]:
        """Return the files with their outputs; `beside` gives the default name. UsageError for contradictions."""
        if not self.names_outputs or self.uses_stdout:
            return [Job(file.path, self._given(file.path), file.error) for file in files]
        jobs = plan(in_order(files), beside, self.places, force=self.force)
        if self.places.directory is not None:
            self._make_directory(self.places.directory)
        return jobs

    def is_done(self, job: Job, archive: str, original: str) -> bool:
        """Tell whether `--skip-existing` skips a job; OutputExistsError for an output that does not fit its input."""
        if not self.skip_existing or not self.names_outputs or job.output is None or not os.path.lexists(job.output):
            return False
        if is_done(archive, original):
            return True
        if self.force:
            return False
        from nvckpt.errors import OutputExistsError

        raise OutputExistsError(
            f"output {show(job.output)} exists, but is not a whole one of this file; -f (force) replaces it"
        )

    def check(self) -> None:
        """UsageError for options that contradict each other."""
        directory = self.places.directory
        if self.output is not None and (self.stdout or len(self.names) > 1 or self.recursive):
            raise UsageError("-o takes one input, and neither -c nor -r")
        if self.stdout and self.recursive:
            raise UsageError("-c takes files, not -r")
        if directory is not None and (self.output is not None or self.stdout):
            raise UsageError("an output directory goes with neither -o nor -c")
        if self.flat is not None and self.mirror is not None:
            raise UsageError("--output-dir-flat and --output-dir-mirror exclude each other")
        if directory == "":
            raise UsageError("the output directory has no name")
        if self.skip_existing and not self.names_outputs:
            raise UsageError("--skip-existing goes with neither -o nor -c")
        self._check_pipes()

    def _check_pipes(self) -> None:
        if list(self.names).count(PIPE) > 1:
            raise UsageError("standard input can be read only once")
        if not self.uses_stdout:
            return
        if len(self.names) > 1 and not self.stdout:
            raise UsageError("with several inputs, - needs -c")
        if not self.force and sys.stdout is not None and sys.stdout.isatty():
            raise UsageError("standard output is a terminal; redirect it, or use -f")
        if self.remove:
            raise UsageError("--rm needs an output file, not standard output")

    def _given(self, name: str) -> str | None:
        """Return the output asked for: `-` when bytes go to standard output, None for the default name."""
        if self.output is None and self.places.directory is not None:
            return None
        return PIPE if self.stdout or (self.output is None and name == PIPE) else self.output

    def _make_directory(self, directory: str) -> None:
        from nvckpt.errors import WriteError

        try:
            os.makedirs(directory, exist_ok=True)  # noqa: PTH103 - the name stays as typed
        except FileExistsError:
            raise UsageError(f"{show(directory)} is there and not a directory") from None
        except OSError as error:
            raise WriteError(show(directory), error) from error
