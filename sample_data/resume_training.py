"""Train, be killed at any moment, resume from the archive, and reach the same loss, bit for bit.

    python sample_data/resume_training.py --folder /tmp/run            # trains; kill it whenever you like
    python sample_data/resume_training.py --folder /tmp/run            # goes on where the last checkpoint was
    python sample_data/resume_training.py --folder /tmp/other          # never killed: prints the same last line

Every `--every` steps the whole state goes into one archive: weights, AdamW's moments, the schedule, the position in
the data and the random generator. Saving goes on behind the training (`blocking=False`).
"""

import argparse
import os
import signal
from pathlib import Path

import torch
from tiny_model import Config, LanguageModel

import nvckpt


def batch(step: int, vocabulary: int) -> torch.Tensor:
    """Rows that can be learned: counting upwards from anywhere, with a stride of the row's own."""
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(0, vocabulary, (8, 1), generator=generator)
    stride = torch.randint(1, 5, (8, 1), generator=generator)
    return (start + stride * torch.arange(33)) % vocabulary


def state_of(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, schedule: object, step: int
) -> dict[str, object]:
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "rng": torch.get_rng_state(),
        "step": step,
    }


def train(folder: Path, steps: int, every: int, die_at: int | None) -> float:
    """Run to `steps`, resuming from what is in the folder; `die_at` ends the process as the kernel would."""
    torch.set_num_threads(1)  # so small a model only waits for more, and sums come in one order on any machine
    torch.manual_seed(0)
    config = Config("resumed", steps, seed=0)
    model = LanguageModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    first = 0
    archive = folder / "last.nvckpt"
    if archive.exists():
        state = nvckpt.load(archive)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["rng"])
        first = state["step"]
        print(f"resumed at step {first}", flush=True)
    loss = torch.tensor(0.0)
    saving = None
    for step in range(first, steps):
        rows = batch(step, config.vocab)
        noise = torch.rand(rows.shape) < 0.05  # the random generator is part of the state
        inputs = torch.where(noise, 0, rows)[:, :-1]
        scores, _ = model(inputs)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % every == 0:
            saving = nvckpt.save(state_of(model, optimizer, schedule, step + 1), archive, blocking=False)
        if step + 1 == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
    if saving is not None:
        saving.wait()
    return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--die-at", type=int, help="kill the process after this step (for the test)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    loss = train(options.folder, options.steps, options.every, options.die_at)
    print(f"loss after {options.steps} steps: {loss.hex()}")


if __name__ == "__main__":
    main()
