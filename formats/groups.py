"""What a tensor is for: weights, optimizer moments, gradients and so on.

A group is advice, for reports and for choosing a codec; nothing that is stored depends on it being
right. Structure (a `role`, found by the reader) comes before names, and names before the dtype.
"""

import re
from pathlib import Path
from typing import Final

from nvckpt.formats.dtypes import DType

WEIGHTS: Final = "weights"
MASTER: Final = "master"
EXP_AVG: Final = "exp_avg"
EXP_AVG_SQ: Final = "exp_avg_sq"
MAX_EXP_AVG_SQ: Final = "max_exp_avg_sq"
ADAFACTOR: Final = "adafactor"
MOMENTUM: Final = "momentum"
SECOND_ORDER: Final = "second_order"
SCHEDULE_FREE: Final = "schedule_free"
OPTIM_8BIT: Final = "optim_8bit"
EMA: Final = "ema"
GRADS: Final = "grads"
SCALAR: Final = "scalar"
RNG: Final = "rng"
QUANTIZED: Final = "quantized"
BUFFERS: Final = "buffers"
OTHER: Final = "other"

# A group's place here is its id in archives: append only.
GROUPS: Final = (
    WEIGHTS,
    MASTER,
    EXP_AVG,
    EXP_AVG_SQ,
    MAX_EXP_AVG_SQ,
    ADAFACTOR,
    MOMENTUM,
    SECOND_ORDER,
    SCHEDULE_FREE,
    OPTIM_8BIT,
    EMA,
    GRADS,
    SCALAR,
    RNG,
    QUANTIZED,
    BUFFERS,
    OTHER,
)

# Roles that a reader can find besides a group: the inside of an optimizer's state, a place of which
# nothing is known, and one that is known to hold no model.
OPTIMIZER_ROLE: Final = "optimizer"
UNKNOWN_ROLE: Final = ""

_Table = dict[str, str]


def _table(**names: str) -> _Table:
    """Invert {group: "name name ..."}."""
    return {name: group for group, words in names.items() for name in words.split()}


# Names that mean one thing wherever they stand in a path.
_ANYWHERE = _table(
    exp_avg="exp_avg exp_avgs exp_avg_slow exp_avg_fast",
    exp_avg_sq="exp_avg_sq exp_avg_sqs exp_inf square_avg exp_hessian_diag_sq",
    max_exp_avg_sq="max_exp_avg_sq max_exp_avg_sqs",
    adafactor="exp_avg_sq_row exp_avg_sq_col row_var col_var",
    momentum="momentum_buffer grad_avg acc_delta",
    second_order="filtered_grad weight_buffer factor_matrices inv_factor_matrices",
    master="fp32_from_fp16_params shard_fp32_from_float16_groups fp32_param master_param master_params "
    "master master_weights fp32_master single_partition_of_fp32_groups fp32_flat_groups fp32_groups_flat",
    ema="state_dict_ema model_ema ema ema_model ema_state_dict ema_params averaging_state shadow_params "
    "collected_params unet_ema",
    grads="grad grads gradients main_grad acc_grads averaged_gradients fp32_grad",
    rng="rng_state rng_states cuda_rng_state cpu_rng_state random_rng_state",
    quantized="quant_state qweight qzeros",
    optim_8bit="__bnb_optimizer_quant_state__",
)
# Short names that only mean something as the key of a parameter's optimizer state.
_IN_OPTIMIZER = _table(
    exp_avg="m m1 m2 mu",
    exp_avg_sq="v nu sum",
    adafactor="variance RMS",
    momentum="prev step_size ax",
    second_order="GG Q pre_cond",
    schedule_free="z",
    optim_8bit="state1 state2 qmap1 qmap2 absmax1 absmax2 unorm_vec codes scale qmap new_max1 new_max2",
    master="param fp32",
    scalar="step steps mu_product eta",
)
_LAST = _table(
    quantized="SCB weight_format absmax quant_map nested_absmax nested_quant_map scales g_idx weight_packed "
    "weight_scale weight_scale_inv weight_zero_point weight_shape weight_g_idx input_scale zero_points _extra_state",
    buffers="running_mean running_var position_ids inv_freq num_batches_tracked mask masked_bias indices "
    "crow_indices col_indices",
)
_SUBSTRINGS = (
    ("factor_matri", SECOND_ORDER),
    ("eigenvectors", SECOND_ORDER),
    ("pre_cond", SECOND_ORDER),
    ("quant_state.bitsandbytes", QUANTIZED),
)
_OPTIMIZER_WORDS = frozenset(
    {
        "optim",
        "optimizer",
        "optimizers",
        "optimizer_state",
        "optimizer_states",
        "optimizer_state_dict",
        "optim_state",
        "optim_state_dict",
        "opt_state",
        "base_optimizer_state",
    }
)
_WEIGHT_WORDS = frozenset({"weight", "bias", "gamma", "beta"})
_RNG_WORD = re.compile(r"(?:^|[._/])rng(?:$|[._/])")
_SEPARATOR = re.compile(r"[./]")
# torch's CPU generator state; a CUDA one has 16 bytes.
_CPU_GENERATOR_BYTES = 5056
_BYTE_KEYS = frozenset({"cpu", "cuda"})


def group_of(name: str, dtype: DType, numel: int | None = None, role: str = WEIGHTS) -> str:
    """The group of a tensor called `name` (components joined by dots or slashes).

    `numel` is the number of elements of the whole storage, None when unknown. `role` is what the
    structure around the tensor told: a group, OPTIMIZER_ROLE or UNKNOWN_ROLE; a name that says
    otherwise wins over a role that is a group.
    """
    if numel is not None and numel <= 1:
        return SCALAR
    parts = _SEPARATOR.split(name)
    last = _last_word(parts)
    in_optimizer = role == OPTIMIZER_ROLE or not _OPTIMIZER_WORDS.isdisjoint(parts)
    if in_optimizer and last in _IN_OPTIMIZER:
        return _IN_OPTIMIZER[last]
    for part in reversed(parts):
        if part in _ANYWHERE:
            return _ANYWHERE[part]
    return _by_last_word(name, last, dtype, numel) or _by_dtype(last, dtype, in_optimizer, role)


def _last_word(parts: list[str]) -> str:
    """The last component that is not an index: a list of tensors is named by its own key."""
    for part in reversed(parts):
        if not part.isdecimal():
            return part
    return ""


def _by_last_word(name: str, last: str, dtype: DType, numel: int | None) -> str | None:
    if last in _LAST:
        return _LAST[last]
    for text, group in _SUBSTRINGS:
        if text in name:
            return group
    if dtype.name == "U8" and (numel == _CPU_GENERATOR_BYTES or last in _BYTE_KEYS):
        return RNG
    if "rng" in name and _RNG_WORD.search(name.replace("_", ".")):
        return RNG
    return None


def _by_dtype(last: str, dtype: DType, in_optimizer: bool, role: str) -> str:
    if dtype.kind == "packed" or dtype.name.startswith("Q"):
        return QUANTIZED
    if dtype.kind in {"int", "bool"}:
        return QUANTIZED if last in _WEIGHT_WORDS else BUFFERS
    if last.endswith("_mask"):
        return BUFFERS
    if in_optimizer:
        return OTHER
    if role in _ROLE_GROUPS:
        return role
    return WEIGHTS if last in _WEIGHT_WORDS else OTHER


_ROLE_GROUPS = frozenset(GROUPS)
_FILE_ROLES = {
    "exp_avg": EXP_AVG,
    "exp_avg_sq": EXP_AVG_SQ,
    "fp32": MASTER,
}


def role_of_file(path: Path | None) -> str:
    """What a file's name tells of all tensors in it: DeepSpeed's universal files, and averaged weights."""
    if path is None:
        return UNKNOWN_ROLE
    stem = path.stem
    if stem in _FILE_ROLES:
        return _FILE_ROLES[stem]
    is_average = stem.endswith(("-EMA", "_ema", "-ema")) or path.parent.name.endswith("_ema")
    return EMA if is_average else UNKNOWN_ROLE
