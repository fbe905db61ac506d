"""The command line: `trimtab demo | run | check | diagnose | repair | predict | probe | explain`."""

from trimtab.cli.main import main

__all__ = ["main"]
