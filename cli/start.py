"""Where the program starts: what Ctrl-C does is settled before anything that takes time is loaded."""

import signal


def main() -> None:
    """Run the command line; until its own handling of signals stands, an interrupt ends the process without a word."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from nvckpt.cli.main import main as run

    run()
