"""What fuzzing found worth keeping, run again: documented errors only, quickly, in little memory."""

import json
import tracemalloc
from pathlib import Path

import fuzz_run
import fuzz_targets
import pytest

CORPUS = Path(__file__).parent / "corpus"
RUNS = Path(__file__).parent.parent / "sample_data" / "runs"
MEMORY = 64 << 20
"""Bytes that an input of at most two kilobytes may make a target take."""


@pytest.mark.parametrize("name", fuzz_targets.TARGETS)
def test_corpus_replays(name, record_property):
    """Each input of a target, under a bound on memory; `run` lets everything undocumented through."""
    inputs = sorted((CORPUS / name).iterdir())
    assert inputs
    with fuzz_targets.without_checksums():
        for path in inputs:
            data = path.read_bytes()
            assert fuzz_targets.run(name, data) < fuzz_targets.SLOW, path.name
    record_property("corpus", len(inputs))


@pytest.mark.parametrize("name", ["archive", "pickle", "safetensors"])
def test_corpus_takes_little_memory(name):
    """The largest inputs of the targets that build most."""
    inputs = sorted((CORPUS / name).iterdir(), key=lambda path: -path.stat().st_size)[:20]
    tracemalloc.start()
    try:
        with fuzz_targets.without_checksums():
            for path in inputs:
                fuzz_targets.run(name, path.read_bytes())
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


def test_corpus_and_run_have_every_target():
    """A target that nobody fuzzes would be forgotten."""
    assert sorted(path.name for path in CORPUS.iterdir()) == sorted(fuzz_targets.TARGETS)
    assert sorted(fuzz_run.TARGETS) == sorted(fuzz_targets.TARGETS)


def test_recorded_run_found_nothing():
    """What README says of the recorded runs."""
    (path,) = RUNS.glob("*-fuzz/summary.json")
    totals = json.loads(path.read_text())["totals"]
    assert totals["executions"] >= 2_000_000
    assert [totals[key] for key in ("crashes", "hangs", "beyond_memory")] == [0, 0, 0]
    (path,) = RUNS.glob("*-reliability/results.json")
    results = json.loads(path.read_text())
    assert results["kills"]["killed"] == 200
    assert results["disks"]["sizes"] == 50
    for part in (results["kills"], results["disks"]):
        assert part["damaged_or_missing_sources"] == part["partial_files"] == 0
