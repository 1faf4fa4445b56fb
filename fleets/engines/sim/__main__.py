"""`python -m fleets.engines.sim`."""

import sys

from fleets.engines.sim.main import main

sys.exit(main())
