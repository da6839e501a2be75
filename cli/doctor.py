"""`nvckpt doctor`."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from nvckpt.cli import options, report
from nvckpt.cli.console import SCHEMA, Talk
from nvckpt.cli.exits import Exit

if TYPE_CHECKING:
    from nvckpt.doctor import Diagnosis


def doctor(json: options.Json = False) -> Exit:
    """Show what this machine has, and why a codec cannot run here."""
    from nvckpt.doctor import diagnose

    found = diagnose()
    talk = Talk(as_json=json)
    if json:
        talk.document({"schema": SCHEMA, "command": "doctor", **asdict(found)})
        return Exit.OK
    talk.line(f"nvckpt {found.version} on {found.python}")
    talk.line(f"{found.system}, {found.cores} cores; {_device(found)}")
    for number, gpu in enumerate(found.gpus):
        talk.line(
            f"cuda:{number} is {gpu.name}, compute capability {gpu.capability}, {report.size(gpu.memory)}; "
            f"CUDA {_cuda(gpu.runtime)}, driver for {_cuda(gpu.driver)}; direct storage {gpu.direct_storage}"
        )
    talk.line(f"codec float runs in {found.float_implementation}")
    libraries = report.table(("library", "version", "for"), left=3)
    for name, version, use in found.libraries:
        libraries.add_row(name, version or "not installed", use)
    talk.table(libraries)
    codecs = report.table(("codec", "id", "here"), left=3)
    for codec in found.codecs:
        codecs.add_row(codec.name, "" if codec.id is None else str(codec.id), "no" if codec.problem else "yes")
    talk.table(codecs)
    for problem in dict.fromkeys(codec.problem for codec in found.codecs if codec.problem):
        talk.line(f"{', '.join(codec.name for codec in found.codecs if codec.problem == problem)}: {problem}")
    return Exit.OK


def _device(found: "Diagnosis") -> str:
    if found.cuda_problem:
        return f"device auto is cpu: {found.cuda_problem}"
    return f"device auto is {found.device} for large files"


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
