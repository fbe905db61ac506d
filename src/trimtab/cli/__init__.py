"""The command line: `trimtab demo | run | check | diagnose | explain`."""

from trimtab.cli.main import main

__all__ = ["main"]
