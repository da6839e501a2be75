"""What the whole suite shares: the summary line of the damage tests."""

DAMAGE = {"flips": 0, "cuts": 0}


def pytest_runtest_logreport(report):
    """Add up what the damage tests recorded; reports reach the main process from parallel workers, too."""
    if report.when == "call" and report.passed:
        for name, count in report.user_properties:
            if name in DAMAGE:
                DAMAGE[name] += count


def pytest_terminal_summary(terminalreporter):
    if DAMAGE["flips"]:
        terminalreporter.write_line(
            f"golden archives: {DAMAGE['flips']:,} bit flips and {DAMAGE['cuts']:,} cuts, all detected"
        )
