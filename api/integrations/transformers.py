"""Transformers: the Trainer of this module saves compressed checkpoints and resumes from them.

In the `checkpoint-N` folders `optimizer.pt` and the safetensors weights become archives (`optimizer.pt.nvckpt`);
everything else is as Transformers writes it, and so is what `save_model` writes for others to read. `nvckpt
decompress` in the folder gives Transformers' own files back.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME
from transformers.utils import is_sagemaker_mp_enabled, is_torch_xla_available

from nvckpt import files
from nvckpt.compression import CompressOptions, compress
from nvckpt.decompression import decompress
from nvckpt.loading import load
from nvckpt.saving import save

_WEIGHTS = "*.safetensors"


class CompressedCheckpoints:
    """What to put before a Trainer: `class MyTrainer(CompressedCheckpoints, SomeTrainer)`.

    `compress_options` may be replaced in the class or the instance. With DeepSpeed, FSDP, XLA or SageMaker, which
    write folders of their own, only the weights become archives; for FSDP see nvckpt.integrations.distributed.
    """

    compress_options = CompressOptions(force=True, remove=True)

    def _save_optimizer_and_scheduler(self: Any, output_dir: str) -> None:
        if not _writes_optimizer(self):
            super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]
            return
        if self.args.should_save:
            options = self.compress_options
            target = Path(output_dir, OPTIMIZER_NAME + files.SUFFIX)
            save(self.optimizer.state_dict(), target, codec=options.codec, level=options.level, threads=options.threads)
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir, SCHEDULER_NAME))

    def _load_optimizer_and_scheduler(self: Any, checkpoint: str | None) -> None:
        archive = Path(checkpoint or "", OPTIMIZER_NAME + files.SUFFIX)
        if checkpoint is None or not archive.exists():
            super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
            return
        location = self.args.device if self.args.world_size > 1 and self.args.device.type != "cpu" else "cpu"
        self.optimizer.load_state_dict(load(archive, location, weights_only=True))
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint, SCHEDULER_NAME), weights_only=True))

    def _save_checkpoint(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = super()._save_checkpoint(*args, **kwargs)  # type: ignore[misc]
        trial = args[1] if len(args) > 1 else kwargs.get("trial")
        folder = Path(self._get_output_dir(trial=trial), f"checkpoint-{self.state.global_step}")
        for path in sorted(folder.glob(_WEIGHTS)) if self.args.should_save else ():
            compress(path, options=self.compress_options)
        return result

    def _load_from_checkpoint(self: Any, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> Any:
        with _restored(resume_from_checkpoint) as folder:
            return super()._load_from_checkpoint(folder, *args, **kwargs)  # type: ignore[misc]

    def _load_best_model(self: Any) -> Any:
        best = self.state.best_model_checkpoint
        with _restored(best) as folder:
            self.state.best_model_checkpoint = folder
            try:
                return super()._load_best_model()  # type: ignore[misc]
            finally:
                self.state.best_model_checkpoint = best


class Trainer(CompressedCheckpoints, transformers.Trainer):  # type: ignore[misc]
    """transformers.Trainer with compressed checkpoints."""


def _writes_optimizer(trainer: Any) -> bool:
    """Tell whether the optimizer goes into one file."""
    others = (
        is_torch_xla_available(),
        is_sagemaker_mp_enabled(),
        trainer.is_deepspeed_enabled,
        trainer.is_fsdp_enabled,
    )
    return not any(others)


@contextlib.contextmanager
def _restored(checkpoint: str) -> Iterator[str]:
    """A folder with the checkpoint's files, the weights decompressed; the checkpoint itself if none is an archive."""
    archives = sorted(Path(checkpoint).glob(_WEIGHTS + files.SUFFIX))
    if not archives:
        yield checkpoint
        return
    # Beside the others: there is room for checkpoints there, and links into it stay short.
    with tempfile.TemporaryDirectory(dir=checkpoint, prefix=".weights-") as folder:
        for name in os.listdir(checkpoint):  # noqa: PTH208 - names are what is needed
            if not name.startswith(".weights-"):
                Path(folder, name).symlink_to(Path(checkpoint, name).resolve())
        for archive in archives:
            decompress(archive, Path(folder, archive.name.removesuffix(files.SUFFIX)))
        yield folder
