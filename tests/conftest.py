"""What the whole suite shares: the summary lines of the tests that count."""

COUNTS = dict.fromkeys(("flips", "cuts", "faults", "kills", "disks", "corpus"), 0)

SENTENCES = {
    "faults": "fault injection: {:,} failed system calls, 0 sources lost, 0 partial files",
    "kills": "kill test: {:,} runs killed, 0 sources lost, 0 partial files",
    "disks": "full disk: {:,} sizes, 0 sources lost, 0 partial files",
    "corpus": "fuzzing corpus: {:,} inputs replayed, 0 crashes, 0 hangs",
}


def pytest_runtest_logreport(report):
    """Add up what tests recorded; reports reach the main process from parallel workers, too."""
    if report.when == "call" and report.passed:
        for name, count in report.user_properties:
            if name in COUNTS:
                COUNTS[name] += count


def pytest_terminal_summary(terminalreporter):
    if COUNTS["flips"]:
        terminalreporter.write_line(
            f"golden archives: {COUNTS['flips']:,} bit flips and {COUNTS['cuts']:,} cuts, all detected"
        )
    for name, sentence in SENTENCES.items():
        if COUNTS[name]:
            terminalreporter.write_line(sentence.format(COUNTS[name]))
