"""`python -m trimtab`, also under torchrun."""

from trimtab.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
