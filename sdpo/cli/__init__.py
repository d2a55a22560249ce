"""Command line programs other than training: `python -m sdpo.cli.NAME`."""
