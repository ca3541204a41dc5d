"""What the subcommands of `vitocr` do; `vitocr/cli.py` is where they are put together."""
