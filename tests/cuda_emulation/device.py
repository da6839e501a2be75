"""A device for the CUDA float codec's host code whose kernels run on the CPU (see emu.h)."""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np

from nvckpt.codecs.float_cuda_device import KERNELS, defines, merged_source

HERE = Path(__file__).parent
GUARD = 64
POISON = (0xDD, 0x5A)


def compiler():
    return shutil.which("g++")


class EmulatedDevice:
    """Memory is NumPy's, poisoned, with guard bytes behind it that must stay as they are."""

    def __init__(self, folder, poison=0xDD):
        self.folder, self.poison = Path(folder), poison
        self._libraries = {}
        self._guards = []

    def empty(self, size):
        whole = np.full(size + GUARD + 16, self.poison, np.uint8)
        start = -whole.ctypes.data % 16
        whole[start + size :] = 0xC5
        self._guards.append(whole[start + size :])
        return whole[start : start + size]

    def zeros(self, size):
        memory = self.empty(size)
        memory[...] = 0
        return memory

    def upload(self, table):
        data = table.reshape(-1).view(np.uint8)
        memory = self.empty(len(data))
        memory[...] = data
        return memory

    def download(self, memory, dtype):
        dtype = np.dtype(dtype)
        return memory[: len(memory) // dtype.itemsize * dtype.itemsize].copy().view(dtype)

    def address(self, memory):
        return memory.ctypes.data

    def resident(self, word, layout):
        return 3

    def launch(self, name, kind, grid, threads, shared, arguments):
        if not grid:
            return
        file, function = name.split(".")
        start = getattr(self._library(file, kind), f"emulate_{function}")
        values = [self.address(a) if isinstance(a, np.ndarray) else int(a) for a in arguments]
        start(grid, threads, ctypes.c_size_t(shared), (ctypes.c_uint64 * len(values))(*values))
        self.check_guards()

    def check_guards(self):
        assert all((guard == 0xC5).all() for guard in self._guards), "a kernel wrote past its memory"

    def _library(self, file, kind):
        if (file, kind) not in self._libraries:
            self._libraries[file, kind] = ctypes.CDLL(str(self._build(file, kind)))
        return self._libraries[file, kind]

    def _build(self, file, kind):
        source = merged_source(file)
        names = re.findall(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\))\s*(\w+)\(', source)
        text = '#include "emu.h"\n' + source + "\n" + "\n".join(f"EMULATE({name})" for name in names) + "\n"
        key = hashlib.sha256((text + str(kind) + (HERE / "emu.h").read_text()).encode()).hexdigest()[:16]
        library = self.folder / f"{file}_{kind[0]}{kind[1]}_{key}.so"
        if not library.exists():
            path = library.with_suffix(f".{os.getpid()}.cpp")  # other test processes may build the same
            path.write_text(text)
            part = library.with_suffix(f".{os.getpid()}")
            command = [compiler(), "-std=c++17", "-O1", "-w", "-fPIC", "-shared", f"-I{HERE}", f"-I{KERNELS}"]
            subprocess.run([*command, *defines(*kind), str(path), "-o", str(part)], check=True)
            part.replace(library)
        return library
