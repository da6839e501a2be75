"""Write a checkpoint of a wanted size from a trained one, by repeating its parameters under other names.

    python sample_data/grow_checkpoint.py FILE.pt OUT.pt --bytes 5000000000

Each repetition rolls every tensor along its last axis by another step, weights, master, gradients and moments alike:
the values, and what follows from what, stay those of training, and no two tensors are equal, so nothing but the codecs
can shrink the file.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PER_PARAMETER = ("model", "master", "grads")
MOMENTS = ("exp_avg", "exp_avg_sq")


def grow(source: dict[str, Any], wanted: int) -> dict[str, Any]:
    """Return a checkpoint of about `wanted` bytes of tensors, structured as `source`."""
    parts = {name: source[name] for name in PER_PARAMETER if name in source}
    states = optimizer_states(source)
    grown: dict[str, Any] = {name: {} for name in parts}
    grown["optimizer"] = {"state": {}, "param_groups": []}
    size = copy = 0
    while size < wanted:
        for name, state in states.items():
            moved = {part: rolled(tensors[name], copy) for part, tensors in parts.items()}
            for part, tensor in moved.items():
                grown[part][f"copies.{copy}.{name}"] = tensor
            moments = {key: rolled(state[key], copy) for key in MOMENTS}
            number = len(grown["optimizer"]["state"])
            grown["optimizer"]["state"][number] = {"step": state["step"].clone(), **moments}
            size += sum(tensor.nbytes for tensor in (*moved.values(), *moments.values()))
            if size >= wanted:
                break
        copy += 1
    group = {key: value for key, value in source["optimizer"]["param_groups"][0].items() if key != "params"}
    grown["optimizer"]["param_groups"] = [{**group, "params": list(grown["optimizer"]["state"])}]
    return grown


def optimizer_states(source: dict[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Return the moments by parameter name; the optimizer has matrices first, then vectors, each in model order."""
    model = source["model"]
    order = [name for name in model if model[name].dim() > 1] + [name for name in model if model[name].dim() <= 1]
    states = source["optimizer"]["state"]
    by_name = {name: states[number] for number, name in enumerate(order)}
    if any(by_name[name]["exp_avg"].shape != model[name].shape for name in model):
        raise SystemExit("the optimizer's states are not in the order that train_models.py gives them")
    return {name: by_name[name] for name in model}


def rolled(tensor: Tensor, copy: int) -> Tensor:
    """Return a tensor of its own storage, moved by another step for each copy."""
    return torch.roll(tensor, 1 + 5 * copy, dims=-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--bytes", type=int, required=True)
    args = parser.parse_args()
    torch.save(grow(torch.load(args.source, mmap=True), args.bytes), args.out)


if __name__ == "__main__":
    main()
