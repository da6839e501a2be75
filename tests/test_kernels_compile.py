"""Every CUDA file compiles, where there is a CUDA compiler."""

import shutil
import subprocess

import pytest

from nvckpt.codecs.float_cuda_device import KERNELS, defines, merged_source

NVCC = shutil.which("nvcc")
FILES = sorted(path.stem for path in KERNELS.glob("*.cu"))
BY_WORD = {"float_decode", "float_encode", "float_fit", "float_transform"}
"""Compiled for a kind of plane; the others are the same for all."""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(NVCC is None, reason="no CUDA compiler (nvcc)")]


@pytest.mark.parametrize("name", FILES)
def test_kernel_file_compiles(name, tmp_path):
    source = tmp_path / f"{name}.cu"
    source.write_text(merged_source(name))
    kind = (4, 2) if name in BY_WORD else (1, 0)
    command = [NVCC, "-arch=sm_90", "-std=c++17", "-cubin", "-o", str(tmp_path / "out.cubin"), *defines(*kind)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.cubin").stat().st_size > 1000
