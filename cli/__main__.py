"""`python -m nvckpt.cli` is the `nvckpt` command."""

from nvckpt.cli.main import main

main()
