"""Runs the ``structout`` command as ``python -m structout``."""

import sys

from structout_cli import main

sys.exit(main())
