"""Sources of the float codec: C, built into `_float` beside this folder, and CUDA, compiled where it runs."""
