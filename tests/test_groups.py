"""Groups come from structure first, then names, then dtypes; their numbers never change."""

from pathlib import Path

import pytest
from checkpoints import FIXTURES
from test_readers_fixtures import make, names_by_group, read

from nvckpt.formats.dtypes import BY_NAME
from nvckpt.formats.groups import GROUPS, OPTIMIZER_ROLE, UNKNOWN_ROLE, group_of, role_of_file

F32 = BY_NAME["F32"]


def test_the_numbers_of_groups_are_fixed():
    """A group's place in GROUPS is its id in archives."""
    assert GROUPS == (
        "weights",
        "master",
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "adafactor",
        "momentum",
        "second_order",
        "schedule_free",
        "optim_8bit",
        "ema",
        "grads",
        "scalar",
        "rng",
        "quantized",
        "buffers",
        "other",
    )


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("model.layers.0.weight", "weights"),
        ("module._orig_mod.model.layers.0.mlp.weight", "weights"),
        ("_fsdp_wrapped_module._flat_param", "weights"),
        ("exp_avg/model.layers.0.weight", "exp_avg"),
        ("exp_avg_sq/model.layers.0.weight", "exp_avg_sq"),
        ("optimizer.state.exp_avg.decoder.layers.self_attention.linear_qkv.weight", "exp_avg"),
        ("optimizer.state.fp32_param.decoder.layers.self_attention.linear_qkv.weight", "master"),
        ("optim.state.layers.0.weight.exp_avg", "exp_avg"),
        ("optim.state.layers.0.weight.max_exp_avg_sq", "max_exp_avg_sq"),
        ("optim.state.layers.0.weight.m", "exp_avg"),
        ("optim.state.layers.0.weight.sum", "exp_avg_sq"),
        ("optim.state.layers.0.weight.z", "schedule_free"),
        ("optim.state.layers.0.weight.state1", "optim_8bit"),
        ("optim.state.layers.0.weight.exp_avg.codes", "optim_8bit"),
        ("optim.state.layers.0.weight.GG.0", "second_order"),
        ("optim.state.layers.0.weight.something_new", "other"),
        ("optimizer.state.0.row_var", "adafactor"),
        ("optimizer.state.0.exp_avg_sq_row", "adafactor"),
        ("optimizer.state.0.momentum_buffer", "momentum"),
        ("optimizer.state.0.step", "scalar"),
        ("optimizer.state.0.shampoo.inv_factor_matrices.0", "second_order"),
        (
            "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32)"
            ".bucket_idx_0.exp_avg",
            "exp_avg",
        ),
        (
            "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0.param",
            "master",
        ),
        ("optimizer_state_dict.fp32_flat_groups.0", "master"),
        ("optimizer_state_dict.single_partition_of_fp32_groups.0", "master"),
        ("master/model.layers.0.weight", "master"),
        ("master_params.3", "master"),
        ("grads.0", "grads"),
        ("grad/model.layers.0.weight", "grads"),
        ("ema.layers.0.weight", "ema"),
        ("model_ema.diffusion_modelinput_blocks00weight", "ema"),
        ("state_dict_ema.conv.weight", "ema"),
        ("shadow_params.12", "ema"),
        ("model.bn.running_mean", "buffers"),
        ("model.rotary.inv_freq", "buffers"),
        ("model.attn.causal_mask", "buffers"),
        ("model.mask_token", "weights"),
        ("layers.0.weight_scale_inv", "quantized"),
        ("layers.0.weight.quant_map", "quantized"),
        ("layers.0.weight.quant_state.bitsandbytes__nf4", "quantized"),
        # Short names of optimizers are ordinary names elsewhere.
        ("model.m", "weights"),
        ("model.attention.v", "weights"),
        ("model.sum", "weights"),
        ("model.scale", "weights"),
    ],
)
def test_float_names(name, group):
    """Names of torch, FSDP, Megatron, DeepSpeed, bitsandbytes, timm, diffusers and others."""
    assert group_of(name, F32, 1000) == group


@pytest.mark.parametrize(
    ("name", "dtype", "numel", "group"),
    [
        ("model.weight", "BF16", 1, "scalar"),
        ("model.bn.num_batches_tracked", "I64", 1, "scalar"),
        ("model.position_ids", "I64", 512, "buffers"),
        ("model.lookup", "I32", 512, "buffers"),
        ("model.attention.keep", "BOOL", 512, "buffers"),
        ("layers.0.qweight", "I32", 512, "quantized"),
        ("layers.0.weight", "U8", 512, "quantized"),
        ("layers.0.weight", "I8", 512, "quantized"),
        ("layers.0.anything", "F4", 512, "quantized"),
        ("layers.0.anything", "QINT8", 512, "quantized"),
        ("layers.0.weight", "F8_E4M3", 512, "weights"),
        ("rng_state", "U8", 5056, "rng"),
        ("something", "U8", 5056, "rng"),
        ("cuda.0", "U8", 16, "rng"),
        ("states.torch_rng", "U8", 816, "rng"),
        ("optimizer.state.0.master_param", "I16", 512, "master"),
        ("optim.state.0.state2", "U8", 512, "optim_8bit"),
        ("model.string", "F32", None, "weights"),
    ],
)
def test_other_dtypes(name, dtype, numel, group):
    """Counts and dtypes decide where names do not."""
    assert group_of(name, BY_NAME[dtype], numel) == group


def test_roles():
    """What the structure told is the answer where the name says nothing."""
    assert group_of("0.m", F32, 9, OPTIMIZER_ROLE) == "exp_avg"
    assert group_of("0.unheard_of", F32, 9, OPTIMIZER_ROLE) == "other"
    assert group_of("a.b", F32, 9, UNKNOWN_ROLE) == "other"
    assert group_of("a.weight", F32, 9, UNKNOWN_ROLE) == "weights"
    assert group_of("a.weight", F32, 9, "ema") == "ema"


def test_file_names():
    """DeepSpeed's universal files and averaged weights are told by their file's name."""
    assert role_of_file(Path("zero/layers.0.weight/exp_avg.pt")) == "exp_avg"
    assert role_of_file(Path("zero/layers.0.weight/fp32.pt")) == "master"
    assert role_of_file(Path("megatron-EMA.ckpt")) == "ema"
    assert role_of_file(Path("unet_ema/diffusion_pytorch_model.safetensors")) == "ema"
    assert role_of_file(Path("model.pt")) == role_of_file(None) == UNKNOWN_ROLE


def groups_of_saved(folder, value, name="x.pt") -> dict[str, set[str]]:
    import torch

    torch.save(value, folder / name)
    return names_by_group(read(folder / name))


def test_an_optimizer_is_known_by_its_structure(tmp_path):
    """A dict with `state` and `param_groups` is an optimizer under any key, with numbers or names."""
    import torch

    states = {"0": {"m": torch.randn(4), "v": torch.randn(4)}, 1: {"momentum_buffer": torch.randn(4)}}
    value = {"thing": {"inner": {"state": states, "param_groups": [{"params": [0, 1]}]}}}
    assert groups_of_saved(tmp_path, value) == {
        "exp_avg": {"thing.inner.state.0.m"},
        "exp_avg_sq": {"thing.inner.state.0.v"},
        "momentum": {"thing.inner.state.1.momentum_buffer"},
    }


def test_top_level_keys(tmp_path):
    """The usual keys of a training checkpoint count as what they say."""
    import torch

    weights = {"a.weight": torch.randn(4), "a.scale": torch.randn(4)}
    value = {
        "model": {"inner": weights, "n": 3},
        "master": dict(weights),
        "ema": {k: v.clone() for k, v in weights.items()},
        "grads": [torch.randn(4)],
        "callbacks": {"thing": {"history": torch.randn(4)}},
    }
    value["master"] = {k: v.clone() for k, v in weights.items()}
    found = groups_of_saved(tmp_path, value)
    assert found["weights"] == {"model.inner.a.weight", "model.inner.a.scale"}
    assert found["master"] == {"master.a.weight", "master.a.scale"}
    assert found["ema"] == {"ema.a.weight", "ema.a.scale"}
    assert found["grads"] == {"grads.0"}
    assert found["other"] == {"callbacks.thing.history"}


def test_averaged_models(tmp_path):
    """Lightning's weight averaging and torch's AveragedModel hold averages, not the live weights."""
    import torch

    def weights():
        return {"a.weight": torch.randn(4)}

    found = groups_of_saved(
        tmp_path, {"current_model_state": weights(), "state_dict": weights(), "averaging_state": weights()}
    )
    assert found == {
        "weights": {"current_model_state.a.weight"},
        "ema": {"state_dict.a.weight", "averaging_state.a.weight"},
    }
    average = torch.optim.swa_utils.AveragedModel(torch.nn.Linear(2, 2)).state_dict()
    assert groups_of_saved(tmp_path, average) == {
        "scalar": {"n_averaged"},
        "ema": {"module.weight", "module.bias"},
    }


def test_virtual_pipelines(tmp_path):
    """Megatron's model0, model1 are models."""
    import torch

    assert groups_of_saved(tmp_path, {"model0": {"odd": {"x": torch.randn(4)}, "y": {}}}) == {
        "weights": {"model0.odd.x"}
    }


@pytest.mark.parametrize(
    ("fixture", "group", "names"),
    [
        ("zip_adamw", "max_exp_avg_sq", {f"optimizer.state.{i}.max_exp_avg_sq" for i in range(6)}),
        ("deepspeed_zero1", "master", {"optimizer_state_dict.single_partition_of_fp32_groups.0"}),
        ("deepspeed_model", "weights", {"module.a.weight", "module.a.bias", "module.b.weight"}),
        ("megatron", "master", {"optimizer.fp32_from_fp16_params.0.0"}),
        ("megatron", "rng", {"rng_state.0.torch_rng_state", "rng_state.0.cuda_rng_state"}),
        ("megatron_distrib_optim", "master", {"0.bfloat16,float32.param"}),
        ("lightning", "other", {"callbacks.EarlyStopping.history"}),
        ("zip_module", "buffers", {"net.1.running_mean", "net.1.running_var"}),
        ("zip_quantized", "quantized", {"a", "b", "b.scales", "b.zero_points"}),
    ],
)
def test_frameworks(fixture, group, names, tmp_path):
    """Checkpoints in the shape that the frameworks write are grouped as their users would."""
    assert fixture in FIXTURES
    assert names_by_group(read(make(fixture, tmp_path)))[group] == names
