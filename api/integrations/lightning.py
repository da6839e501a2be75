"""Lightning: `Trainer(plugins=[NvckptCheckpointIO()])` saves compressed checkpoints, and resumes from them.

The files keep their names (`.ckpt`) and are archives: `nvckpt list`, `verify` and `decompress` work on them. What
does not go through the trainer, such as `LightningModule.load_from_checkpoint`, needs the file decompressed first.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvckpt.background import wait as wait_for_background
from nvckpt.codecs import registry
from nvckpt.loading import load
from nvckpt.saving import save

if TYPE_CHECKING:
    from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
elif "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    # The same library under two names, whose classes are not each other's.
    from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
else:
    from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO


class NvckptCheckpointIO(TorchCheckpointIO):  # type: ignore[misc]
    """Saves by `nvckpt.save` and loads by `nvckpt.load`; plain checkpoints from before load, too.

    With `blocking=False` training goes on while a checkpoint is written; see `nvckpt.save`.
    """

    def __init__(self, *, codec: str = registry.AUTO, level: registry.Level = "default", blocking: bool = True) -> None:
        super().__init__()
        self._codec = codec
        self._level = level
        self._blocking = blocking

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """See CheckpointIO; TypeError for `storage_options`, which mean nothing here."""
        if storage_options is not None:
            raise TypeError("NvckptCheckpointIO takes no storage_options")
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        save(checkpoint, target, codec=self._codec, level=self._level, blocking=self._blocking)

    def load_checkpoint(self, path: Any, map_location: Any | None = None, weights_only: bool | None = None) -> Any:
        """See CheckpointIO."""
        wait_for_background()
        if not Path(path).exists():
            raise FileNotFoundError(f"Checkpoint file not found: {path}")
        return load(path, map_location, weights_only=weights_only)

    def remove_checkpoint(self, path: Any) -> None:
        """See CheckpointIO; a checkpoint that is still being written is waited for."""
        wait_for_background()
        super().remove_checkpoint(path)

    def teardown(self) -> None:
        """Wait for what is being written, and raise its error."""
        wait_for_background()
        super().teardown()
