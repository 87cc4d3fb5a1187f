"""`python -m distillspec`, which is what `accelerate launch -m distillspec` runs."""

import sys

from distillspec.cli import main

if __name__ == "__main__":
    sys.exit(main())
