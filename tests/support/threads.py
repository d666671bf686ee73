"""One thread for torch and numpy in each test process: several run at once, and threads that wait spin.

Set before either is imported, so that a run without torch does not load it.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
