"""``python -m structout`` is the ``structout`` command."""

import sys

from structout.cli.main import main

sys.exit(main())
