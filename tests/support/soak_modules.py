"""Makes the modules of `make soak` importable for its tests, as they are for the script itself."""

from __future__ import annotations

import sys
from pathlib import Path

TOOLS = Path(__file__).parents[2] / "tools"

if str(TOOLS) not in sys.path:
    sys.path.append(str(TOOLS))
