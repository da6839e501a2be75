"""Arrows between the folders: cli -> api -> formats and codecs, and none back or across."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "nvckpt": "api",
    "nvckpt.integrations": "api/integrations",
    "nvckpt.cli": "cli",
    "nvckpt.formats": "formats",
    "nvckpt.codecs": "codecs",
}
MODULES = sorted(path for folder in PACKAGES.values() for path in (ROOT / folder).glob("*.py"))
TESTS = sorted((ROOT / "tests").glob("*.py"))
MAY_IMPORT = {
    "formats": {"formats"},
    "codecs": {"codecs"},
    "api": {"api", "formats", "codecs"},
    "integrations": {"api", "formats", "codecs"},
    "cli": {"cli", "api", "formats", "codecs"},
}


def imported(path: Path) -> set[str]:
    """Every module that a file names in an import, at any depth; `from a import b` counts as a.b when that is one."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def folder_of(module: str) -> str | None:
    """The folder that an imported name lives in; None for other people's modules."""
    parts = module.split(".")
    if parts[0] != "nvckpt":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ("cli", "formats", "codecs") else "api"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_imports_only_what_its_layer_may(path):
    """formats and codecs know neither each other nor what uses them; the api does not know the command line."""
    folders = {folder_of(module) for module in imported(path)} - {None}
    assert folders <= MAY_IMPORT[path.parent.name]


@pytest.mark.parametrize("path", [*MODULES, *TESTS], ids=name_of)
def test_nobody_imports_a_folder_by_its_short_name(path):
    """`import formats` would be a second copy of nvckpt.formats, with classes that `except` does not match."""
    assert {module.split(".")[0] for module in imported(path)}.isdisjoint({"cli", "formats", "api"})


# What hands tensors over: only these know torch, and one of them writes a pickle.
WITH_TORCH = {
    "state.py",
    "state_cuda.py",
    "lazy.py",
    "device_loading.py",
    "saving.py",
    "loading.py",
    "opening.py",
    "safetensors_state.py",
}
WITH_PICKLER = {"state.py"}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_product_never_loads_a_pickle(path):
    """Reading a checkpoint must not be able to run its code; `load` leaves that to torch.load's restricted reader."""
    loaders = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
    roots = {module.split(".")[0] for module in imported(path)}
    if path.parent.name == "api" and path.name in WITH_PICKLER:
        used = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert used.isdisjoint({"load", "loads", "Unpickler"})
        roots -= {"pickle"}
    if path.parent.name == "integrations" or (path.parent.name == "api" and path.name in WITH_TORCH):
        roots -= {"torch"}
    assert roots.isdisjoint(loaders | {"torch"})


def test_every_module_was_looked_at():
    """The tests above pass on nothing when a folder is renamed."""
    assert {path.parent.name for path in MODULES} == {Path(folder).name for folder in PACKAGES.values()}
    assert len(MODULES) >= 30


@pytest.mark.parametrize("name", ["Makefile", ".ci/run", "pyproject.toml", "sample_data/demo.sh"])
def test_root_is_never_put_on_the_path(name):
    """With the root on PYTHONPATH `import formats`, and on older Pythons `codecs`, would find our folders."""
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"{name} is not there")
    assert "PYTHONPATH" not in path.read_text()


def test_standard_library_codecs_stay_what_they_are():
    """The folder codecs/ must not shadow the module of that name."""
    import codecs

    assert codecs.lookup("utf-8").name == "utf-8"
    assert not Path(codecs.__file__).is_relative_to(ROOT)
