"""A short replay of the reliability run: kills at random moments, and disks that are too small."""

import random

import pytest
from reliability import Bench, NoMountsError, fill, kill


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path, mebibytes=6)


def test_killed_runs_lose_nothing(bench, record_property):
    """One of each signal, at moments of the clock's choosing."""
    counts = kill(bench, 6, random.Random())
    assert counts["killed"] == 6
    record_property("kills", 6)


def test_full_disks_lose_nothing(bench, record_property):
    """A sentence, exit 1, and no part under the final name."""
    try:
        counts = fill(bench, 5, random.Random())
    except NoMountsError as error:
        pytest.skip(f"no small file system can be made here: {error}")
    assert counts["sizes"] == 5
    record_property("disks", 5)
