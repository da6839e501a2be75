"""`nvckpt doctor`."""

from dataclasses import asdict

from nvckpt.cli import options, report
from nvckpt.cli.console import SCHEMA, Talk
from nvckpt.cli.exits import Exit


def doctor(json: options.Json = False) -> Exit:
    """Show what this machine has, and why a codec cannot run here."""
    from nvckpt.doctor import diagnose

    found = diagnose()
    talk = Talk(as_json=json)
    if json:
        talk.document({"schema": SCHEMA, "command": "doctor", **asdict(found)})
        return Exit.OK
    talk.line(f"nvckpt {found.version} on {found.python}")
    talk.line(f"{found.system}, {found.cores} cores; device auto is {found.device}: {found.cuda_problem}")
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
