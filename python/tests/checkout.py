"""Where the checkout is. Imported first: it makes the checkout's client importable, whether or
not one is installed."""

import pathlib
import sys

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]

sys.path.insert(0, str(CHECKOUT / "python"))
