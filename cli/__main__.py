"""`python -m nvckpt.cli` is the `nvckpt` command."""

from nvckpt.cli.start import main

main()
