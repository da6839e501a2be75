"""What the whole suite shares: the summary line of the damage tests."""

import pytest

DAMAGE = pytest.StashKey[dict[str, int]]()


def pytest_configure(config):
    config.stash[DAMAGE] = {"flips": 0, "cuts": 0}


@pytest.fixture
def damage(pytestconfig):
    """Counts of damaged archives that were found out, for the summary line."""
    return pytestconfig.stash[DAMAGE]


def pytest_terminal_summary(terminalreporter, config):
    counts = config.stash[DAMAGE]
    if counts["flips"]:
        terminalreporter.write_line(
            f"golden archives: {counts['flips']:,} bit flips and {counts['cuts']:,} cuts, all detected"
        )
