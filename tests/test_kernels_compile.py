"""Every CUDA file compiles: by NVRTC, as CuPy compiles it where it runs, and by nvcc; each where it is installed."""

import ctypes
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from nvckpt.codecs.float_cuda_device import KERNELS, defines, merged_source

NVCC = shutil.which("nvcc")
FILES = sorted(path.stem for path in KERNELS.glob("*.cu"))
BY_WORD = {
    "float_decode",
    "float_encode",
    "float_fit",
    "float_transform",
    "lowrank_decode",
    "lowrank_encode",
    "lowrank_fit",
    "lowrank_rows",
}
"""Compiled for a kind of plane; the others are the same for all."""
CASES = [(name, kind) for name in FILES for kind in (((2, 2), (4, 2)) if name in BY_WORD else ((1, 0),))]

pytestmark = pytest.mark.slow


def nvrtc():
    """NVIDIA's library of the package nvidia-cuda-nvrtc-cu12 or the like; None where there is none."""
    try:
        found = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        return None
    places = found.submodule_search_locations or () if found else ()
    libraries = [path for place in places for path in Path(place).glob("lib/libnvrtc.so*")]
    return ctypes.CDLL(str(libraries[0])) if libraries else None


NVRTC = nvrtc()


def compiled(source, options):
    """NVRTC's log, empty where the source compiles."""
    program = ctypes.c_void_p()
    assert NVRTC.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = NVRTC.nvrtcCompileProgram(program, len(options), given)
    size = ctypes.c_size_t()
    NVRTC.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    NVRTC.nvrtcGetProgramLog(program, log)
    NVRTC.nvrtcDestroyProgram(ctypes.byref(program))
    return log.value.decode() if failed else ""


@pytest.mark.skipif(NVRTC is None, reason="NVRTC is not installed (package nvidia-cuda-nvrtc-cu12)")
@pytest.mark.parametrize("architecture", ["sm_70", "sm_90"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_kernel_file_compiles_where_it_runs(name, kind, architecture):
    """The oldest GPU that the codec takes, and a recent one."""
    assert compiled(merged_source(name), [f"-arch={architecture}", "--std=c++17", *defines(*kind)]) == ""


@pytest.mark.skipif(NVCC is None, reason="no CUDA compiler (nvcc)")
@pytest.mark.parametrize("name", FILES)
def test_kernel_file_compiles(name, tmp_path):
    source = tmp_path / f"{name}.cu"
    source.write_text(merged_source(name))
    kind = (4, 2) if name in BY_WORD else (1, 0)
    # The oldest architecture that recent compilers know, and the one that is measured.
    targets = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in (75, 90)]
    command = [NVCC, *targets, "-std=c++17", "-fatbin", "-o", str(tmp_path / "out.fatbin"), *defines(*kind)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.fatbin").stat().st_size > 1000
