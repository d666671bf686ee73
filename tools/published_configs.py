"""Fields of published checkpoints, from their config.json on the Hugging Face Hub.

Used in tests and to create checkpoints of real sizes. Omitted: names of classes, token ids, versions,
fields of initialisation, nulls, the sizes of vision towers, and quantisation settings. Jamba-v0.1, LFM3, Ling,
Zamba-7B, ZAYA1, CWM, ERNIE-4.5, Gemma-7B, GLM-4-9B, Helium-1, IQuest-Coder and SmolLM3 have the defaults of their
config classes.
Compared only by the number of parameters, not with the published files: the factors of MiniMax-Text-01, the sizes of
RecurrentGemma-9B, and all of AFM, Bamba, Falcon-H1-34B (without its factors), GLM-4-32B, both Granite, InternLM3,
Jamba-1.5-Large, LFM2-2.6B and LFM2-24B (places of attention), Mamba-2.8B, Ministral, Mistral-Large, Mixtral, OLMo-2,
Qwen2.5, Qwen3-32B, Qwen3-Coder-480B, Seed-OSS and Zamba2.
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
