"""`nvckpt plan`: each formula against numbers worked by hand, the sample against the archive, and what it refuses."""

import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from command import Shell
from test_benchmark import checkpoint

import nvckpt
from nvckpt import cost_inputs
from nvckpt.cost_inputs import from_files, from_recorded, parse_count, parse_duration
from nvckpt.costs import Figures, Scenario, evaluate, recommend
from nvckpt.errors import InvalidRequestError

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "sample_data" / "runs"
SAMPLES = sorted((ROOT / "sample_data" / "checkpoints").glob("*"))
GIB = 1 << 30
ARTICLE = {"weights": 140 * 10**9, "moments": 560 * 10**9, "grads": 140 * 10**9}


@pytest.fixture
def sh(tmp_path):
    return Shell(tmp_path)


def outcomes(ratio, rate, **scenario):
    """Without a codec and with one that has a ratio and a speed for everything."""
    figures = Figures("x", dict.fromkeys(ARTICLE, ratio), dict.fromkeys(ARTICLE, rate))
    without, (codec,) = evaluate(ARTICLE, [figures], Scenario(**({"storage": 5 * GIB} | scenario)))
    return without, codec


# The article's numbers, worked by hand.


def test_article_without_compression():
    """840e9 bytes are 782.3 GiB; at 5 GiB/s 156.5 s; 1,440 times 8 GPUs wait 500.7 hours, $2,203 at $4.40."""
    without, _ = outcomes(1.27, 1e12)
    assert without.bytes_out / GIB == pytest.approx(782.31, abs=0.005)
    assert without.write == pytest.approx(156.46, abs=0.005)
    assert Scenario(5 * GIB).checkpoints == 1440
    assert without.idle_hours == pytest.approx(156.46 * 1440 * 8 / 3600, rel=1e-4)
    assert without.money == pytest.approx(2203, abs=0.5)
    assert without.stored / GIB == pytest.approx(1.1265e6, rel=1e-3)


@pytest.mark.parametrize(
    ("gpus", "parameters", "money"),
    [(8, 70e9, 2203), (64, 70e9, 17_624), (128, 405e9, 203_934), (256, 671e9, 675_751)],
)
def test_clusters_of_the_article(gpus, parameters, money):
    """12 bytes a parameter over 5 GiB/s, 1,440 times, every GPU at $4.40: `$2,200`, `$17,500`, `$200,000`."""
    by_hand = parameters * 12 / 2**30 / 5 * 1440 * gpus / 3600 * 4.40
    without, _ = evaluate({"all": round(parameters * 12)}, [], Scenario(5 * GIB, gpus))
    assert without.money == pytest.approx(by_hand) == pytest.approx(money, abs=1)


def test_ratio_of_the_article():
    """1.27 makes 123 s of 156 s."""
    _, codec = outcomes(1.27, 1e12)
    assert codec.pipelined == pytest.approx(156.46 / 1.27, abs=0.01) == pytest.approx(123.2, abs=0.05)


def test_pipelined_is_the_slower_stage_and_serial_the_sum():
    """At 10e9 bytes/s encoding takes 84 s; the 1.25 times smaller rest 125.2 s to write."""
    _, codec = outcomes(1.25, 10e9)
    assert codec.encode == pytest.approx(84.0)
    assert codec.write == pytest.approx(125.17, abs=0.01)
    assert codec.pipelined == codec.write
    assert codec.serial == pytest.approx(209.17, abs=0.01)
    _, slow = outcomes(1.25, 5e9)
    assert slow.pipelined == slow.encode == pytest.approx(168.0)
    _, shared = outcomes(1.25, 5e9, encoders=2)
    assert shared.encode == pytest.approx(84.0)


def test_break_even():
    """Overlapped, a codec pays up to its own speed; one after the other, to 1 - 1/r of it. At both, nothing is won."""
    _, codec = outcomes(1.25, 10e9)
    assert codec.break_even_pipelined == pytest.approx(10e9)
    assert codec.break_even_serial == pytest.approx(2e9)
    for speed, time in ((10e9, "pipelined"), (2e9, "serial")):
        for storage, pays in ((0.99 * speed, True), (1.01 * speed, False)):
            without, again = outcomes(1.25, 10e9, storage=storage)
            assert (getattr(again, time) < without.write) is pays
    assert outcomes(1.0, 10e9)[1].break_even_pipelined is None


def test_groups_have_their_own_ratios_and_speeds():
    """Bytes and seconds add up over the groups."""
    figures = Figures(
        "x", {"weights": 2.0, "moments": 1.0, "grads": 4.0}, {"weights": 1e9, "moments": 2e9, "grads": 7e9}
    )
    _, (codec,) = evaluate(ARTICLE, [figures], Scenario(1e9))
    assert codec.bytes_out == pytest.approx(70e9 + 560e9 + 35e9)
    assert codec.encode == pytest.approx(140 + 280 + 20)


def test_async_waits_for_the_copy_alone():
    """8 links of 50e9 bytes/s take 2.1 s; a codec that is faster makes it less, one that is slower more."""
    without, codec = outcomes(1.25, 1e12, sync=False)
    assert without.waiting == pytest.approx(2.1)
    assert codec.waiting == pytest.approx(2.1 / 1.25)
    assert codec.worth
    _, slow = outcomes(1.25, 100e9, sync=False)
    assert slow.waiting == pytest.approx(8.4)
    assert slow.verdict == "not worth it: slower than the copy"


def test_async_waits_for_a_write_that_is_late():
    """What is not written when the next checkpoint is due is waited for: 156.5 s of writing each 100 s."""
    without, codec = outcomes(1.25, 1e12, sync=False, every=100)
    assert without.waiting == pytest.approx(2.1 + 56.46, abs=0.01)
    assert codec.waiting == pytest.approx(2.1 / 1.25 + 25.17, abs=0.01)


# The recommendation.


@pytest.mark.parametrize(
    ("ratio", "rate", "storage", "verdict", "sentence"),
    [
        (1.27, 500e9, 5 * GIB, "worth it", r"Use x: .* 123 s instead of 156 s, which saves \$468 "),
        (1.01, 500e9, 5 * GIB, "not worth it: hardly shrinks", r"Not worth it: this content hardly shrinks .*1\.010"),
        (
            1.27,
            10e9,
            55 * GIB,
            "not worth it: slower than the storage",
            "Not worth it for the time: the storage is fast",
        ),
        (1.27, 60.3e9, 56 * GIB, "not worth it: saves no time", "Not worth it for the time"),
    ],
)
def test_recommendation(ratio, rate, storage, verdict, sentence):
    """One sentence: the best codec, or why none."""
    without, codec = outcomes(ratio, rate, storage=storage)
    assert codec.verdict == verdict
    said = recommend(without, [codec], Scenario(storage))
    assert re.match(sentence, said)
    assert said.endswith(".")


# Where the numbers come from.


def test_recorded_runs_are_those_of_the_report():
    """What the package carries and the report says are made from the committed runs by the script, byte for byte."""
    script = runpy.run_path(str(ROOT / "sample_data" / "article_report.py"))
    command = (RUNS / "2026-12-01-article" / "README.md").read_text()
    dense, moe = re.search(r"--dense (\S+) --moe (\S+)", command).groups()
    kinds = {"dense": script["read"](ROOT / dense), "moe": script["read"](ROOT / moe)}
    assert script["packaged"](kinds) == (ROOT / "api" / "recorded_runs.json").read_text()
    assert script["report"](kinds) == (RUNS / "2026-12-01-article" / "report.md").read_text()


@pytest.mark.parametrize("kind", cost_inputs.KINDS)
@pytest.mark.parametrize(("layout", "width"), [("adamw-bf16", 12), ("megatron", 14), ("fp32", 12)])
def test_layouts(layout, width, kind):
    """Bytes a parameter, and figures for each group of several codecs; the answer says that they are recorded."""
    inputs = from_recorded(1e9, layout, kind)
    assert sum(inputs.sizes.values()) == width * 10**9
    assert len(inputs.figures) >= 3
    for figures in inputs.figures:
        assert set(figures.ratios) == set(figures.rates) == set(inputs.sizes)
        assert all(1 < ratio < 3 for ratio in figures.ratios.values())
    assert "recorded" in inputs.source


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_small_files_are_measured_whole(sample, tmp_path):
    """The ratio is that of the real archive, within what its own index costs."""
    real = nvckpt.compress(sample, tmp_path / "a.nvckpt")
    inputs = from_files([sample], ["auto"])
    _, (codec,) = evaluate(inputs.sizes, inputs.figures, Scenario(1e9))
    assert sum(inputs.sizes.values()) == sample.stat().st_size
    assert codec.bytes_out == pytest.approx(real.bytes_out, rel=0.01, abs=12_000)


def test_sample_tells_the_ratio_of_the_whole(tmp_path, monkeypatch):
    """Within 1 % of the real archive's, from a quarter of the bytes, for content that differs from place to place.

    The recorded case, 5 GB with samples of 32 MiB a group, gave 1.559 for 1.554.
    """
    rng = np.random.default_rng(3)
    tensors = {}
    for layer in range(12):
        scales = np.exp(rng.normal(0, 0.7, (512, 1)) + rng.normal(0, 0.4, (1, 512)))
        moment = (rng.standard_normal((512, 512)) * scales).astype(np.float32)
        moment[: 40 * (layer % 3)] = 0
        tensors[f"exp_avg.layers.{layer}.weight"] = moment
        master = (rng.standard_normal((512, 512)) * (0.02 + 0.002 * layer)).astype(np.float32)
        tensors[f"layers.{layer}.weight"] = (master.view(np.uint32) >> 16).astype(np.uint16)
    path = checkpoint(tmp_path / "m.safetensors", tensors)
    real = nvckpt.compress(path)
    monkeypatch.setattr(cost_inputs, "SAMPLE", 3 << 20)
    inputs = from_files([path], ["auto"])
    assert re.search(r"sample of [56] MiB of 18 MiB", inputs.source)
    _, (codec,) = evaluate(inputs.sizes, inputs.figures, Scenario(1e9))
    assert codec.ratio == pytest.approx(real.bytes_in / real.bytes_out, rel=0.01)


def test_weights_that_follow_from_masters_are_counted(tmp_path):
    """As in the archive: BF16 weights that are their rounded masters cost next to nothing with auto, not with zstd."""
    rng = np.random.default_rng(4)
    master = rng.standard_normal((1024, 700)).astype(np.float32)
    bits = master.view(np.uint32)
    weights = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    path = checkpoint(tmp_path / "m.safetensors", {"master_params.w.weight": master, "w.weight": weights})
    real = nvckpt.compress(path)
    auto, zstd = from_files([path], ["auto", "zstd"]).figures
    assert auto.ratios["weights"] > 1000 > 2 > zstd.ratios["weights"]
    inputs = from_files([path], ["auto"])
    _, (codec,) = evaluate(inputs.sizes, inputs.figures, Scenario(1e9))
    assert codec.ratio == pytest.approx(real.bytes_in / real.bytes_out, rel=0.01)


def test_counts_and_durations():
    """As people write them."""
    assert [parse_count(text) for text in ("70e9", "70B", "405b", "300M", "1.5T")] == [7e10, 7e10, 4.05e11, 3e8, 1.5e12]
    assert [parse_duration(text) for text in ("30m", "1h", "90s", "1800", "1.5 h", "1d")] == [
        1800,
        3600,
        90,
        1800,
        5400,
        86400,
    ]
    for parse in (parse_count, parse_duration):
        for text in ("", "x", "70 parsecs", "1e9999", "--3"):
            with pytest.raises(InvalidRequestError, match="write"):
                parse(text)


def test_readme_says_what_the_report_says():
    """The figures of README's table of the article stand in the report, and its answer is the command's."""
    readme = (ROOT / "README.md").read_text().split("## What it saves")[1].split("\n## ")[0]
    report = (RUNS / "2026-12-01-article" / "report.md").read_text()
    ours = "".join(line.split("|")[3] for line in readme.splitlines() if line.startswith("| "))
    figures = re.findall(r"\$[\d,]+\d|\d\.\d{3}", ours)
    assert len(figures) >= 15
    assert all(figure in report for figure in figures)
    inputs = from_recorded(70e9, "adamw-bf16", "dense")
    without, codecs = evaluate(inputs.sizes, inputs.figures, Scenario(5 * GIB))
    assert recommend(without, codecs, Scenario(5 * GIB)) in readme


# What the command says.

ASKED = "--params 70e9 --layout adamw-bf16 --storage-gbps 5 --gpus 8 --gpu-hour 4.40 --every 30m"
REQUEST = ["plan", *ASKED.split(" ")]


def test_answer_for_the_article(sh):
    """782 GiB, 156 s, 1,440 checkpoints and $2,200 a month, in words and in the document."""
    text = sh(*REQUEST, check=0).text
    for words in ("782.31 GiB", "156.5 s at 5 GB/s", "1,440", "501 GPU hours", "$2,203", "recorded", "2^30 bytes"):
        assert words in text
    assert text.splitlines()[-1].startswith("Use float")
    document = json.loads(sh(*REQUEST, "--json", check=0).text)
    assert document["without"]["write_seconds"] == pytest.approx(156.46, abs=0.01)
    assert document["scenario"]["checkpoints"] == 1440
    assert document["without"]["money"] == pytest.approx(2203, abs=1)
    assert {group["name"]: group["bytes_in"] for group in document["groups"]}["exp_avg"] == 280 * 10**9
    assert document["recommendation"] == text.splitlines()[-1]
    assert "168.0 s at 5 GB/s" in sh(*REQUEST, "--decimal", check=0).text


@pytest.mark.parametrize("columns", [80, 140])
def test_tables_fit(columns, sh):
    """No cell is cut, no table wider than the terminal."""
    text = sh(*REQUEST, env={"COLUMNS": str(columns)}, check=0).text
    assert "…" not in text
    assert all(len(line) <= columns for line in text.splitlines() if "  " in line.strip())


@pytest.mark.parametrize("columns", [40, 80])
def test_large_figures_are_not_cut(columns, sh):
    """Money of seven digits, and a column of words: the table grows beyond the terminal before a figure is lost."""
    large = ["plan", "--params", "671B", "--kind", "moe", "--layout", "megatron", "--gpus", "256", "--every", "5m"]
    text = sh(*large, env={"COLUMNS": str(columns)}, check=0).text
    assert all(figure in text for figure in ("$4,730,255", "float:level=fast", "1,075,058", "73818.37 TiB"))
    assert "…" not in text + sh(*large, "--async", env={"COLUMNS": str(columns)}, check=0).text


def test_small_checkpoints_have_figures_too(sh):
    """Not 0 MiB of 0 MiB in 0.0 s, nor less than nothing saved."""
    text = sh("plan", str(SAMPLES[0]), "--codec", "zstd", "--storage-gbps", "900", check=0).text
    assert not any(words in text for words in ("-$0", " 0 MiB", "takes 0.0 s", "0.0 GiB"))
    document = json.loads(sh("plan", str(SAMPLES[0]), "--codec", "zstd", "--json", check=0).text)
    assert all(str(codec["saved_money"]) != "-0.0" for codec in document["codecs"])


def test_quantised_weights_are_not_worth_it(sh):
    """Whole numbers without structure do not shrink, and the answer says so."""
    codes = np.random.default_rng(5).integers(-128, 128, (900, 1000)).astype(np.int8)
    checkpoint(sh.folder / "q.safetensors", {"layers.0.weight": codes})
    text = sh("plan", "q.safetensors", "--storage-gbps", "0.001", check=0).text
    assert text.splitlines()[-1].startswith("Not worth it: this content hardly shrinks")


def test_file_on_slow_and_fast_storage(sh):
    """The same file is worth it at 1 MB/s and not at 1 TB/s."""
    arguments = ["plan", str(SAMPLES[0]), "--codec", "zstd"]
    assert sh(*arguments, "--storage-gbps", "0.001", check=0).text.splitlines()[-1].startswith("Use zstd")
    text = sh(*arguments, "--storage-gbps", "1000", check=0).text
    assert text.splitlines()[-1].startswith("Not worth it for the time")
    assert "measured on cpu" in text


def test_a_codec_that_cannot_run_is_left_out(sh):
    """With the reason; it is an error only where it is the only one."""
    assert "ans is left out: it needs an NVIDIA GPU" in sh("plan", str(SAMPLES[0]), check=0).text
    assert "none of the codecs can run here" in sh("plan", str(SAMPLES[0]), "--codec", "ans", check=2).err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name a checkpoint, or a model's size"),
        (["x.pt", "--params", "7B"], "not both"),
        (["--params", "7B", "--codec", "zstd"], "--codec is for a FILE"),
        (["--params", "0"], "at least one parameter"),
        (["--params", "-7e9"], "at least one parameter"),
        (["--params", "many"], "no number of parameters"),
        (["--params", "7B", "--layout", "x"], "unknown layout 'x': choose from adamw-bf16, megatron, fp32"),
        (["--params", "7B", "--kind", "x"], "unknown kind 'x': choose from dense, moe"),
        (["--params", "7B", "--storage-gbps", "0"], "the storage speed must be above zero"),
        (["--params", "7B", "--storage-gbps", "-5"], "the storage speed must be above zero"),
        (["--params", "7B", "--storage-gbps", "nan"], "the storage speed must be above zero"),
        (["--params", "7B", "--storage-gbps", "1e-300"], "the storage speed must be above zero"),
        (["--params", "7B", "--storage-gbps", "inf"], "the storage speed is too large to reckon with"),
        (["--params", "7B", "--days", "1e308"], "the number of days is too large to reckon with"),
        (["--params", "7B", "--gpus", "9" * 400], "the number of GPUs is too large to reckon with"),
        (["--params", "7B", "--gpu-hour", "1e308"], "must not be negative or boundless"),
        (["--params", "1e400"], "fewer than 1e18"),
        (["--params", "7B", "--gpus", "0"], "the number of GPUs must be above zero"),
        (["--params", "7B", "--gpu-hour", "-1"], "must not be negative"),
        (["--params", "7B", "--every", "0m"], "the time between checkpoints must be above zero"),
        (["--params", "7B", "--every", "often"], "is no time: write 30m"),
        (["--params", "7B", "--days", "0"], "the number of days must be above zero"),
        (["--params", "7B", "--every", "2d", "--days", "1"], "longer than the days counted"),
        (["--params", "7B", "--encoders", "0"], "the number of encoders must be above zero"),
        (["words"], "no tensors were found in words: an unknown kind of file"),
    ],
    ids=str,
)
def test_requests_that_cannot_be(sh, arguments, sentence):
    """One sentence and exit 2."""
    (sh.folder / "words").write_bytes(b"no tensors here" * 100)
    done = sh("plan", *arguments, check=2)
    assert sentence in done.err
    assert len(done.err.splitlines()) == 1
    assert done.out == b""


def test_pipe(sh):
    """Standard input is read once, like any file."""
    text = sh("plan", "-", "--codec", "zstd", stdin=SAMPLES[0].read_bytes(), check=0).text
    assert "zstd" in text


def test_missing_file_and_directory(sh):
    """As every command says it."""
    (sh.folder / "d").mkdir()
    assert "no such file" in sh("plan", "nothing.pt", check=1).err
    assert "no such file" in sh("plan", "", check=1).err
    for command in ("plan", "bench"):
        assert "nvckpt: d is a directory; name the files in it" in sh(command, str(SAMPLES[0]), "d", check=1).err
