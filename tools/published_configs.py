"""Fields of published checkpoints, from their config.json on the Hugging Face Hub.

Used in tests and to create checkpoints of real sizes. Omitted: names of classes, token ids, versions,
fields of initialisation, nulls, the sizes of vision towers, and quantisation settings. Jamba, LFM3, Ling,
Zamba and ZAYA1 have the defaults of their config classes.
Not compared with the published files: the factors of MiniMax-Text-01 and the sizes of RecurrentGemma-9B.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("published")

# name -> config.json.
PUBLISHED: Mapping[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))
}
