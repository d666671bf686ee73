"""Speculative decoding: drafters, draft lengths and acceptance. Uses neither engines nor memory."""

from hybridge.runtime.speculation.draft_length import DraftLength
from hybridge.runtime.speculation.drafter import Drafter, DraftRequest, Draw
from hybridge.runtime.speculation.metrics import SpeculationMetrics
from hybridge.runtime.speculation.ngram_drafter import NgramDrafter
from hybridge.runtime.speculation.proposal import Proposal
from hybridge.runtime.speculation.settings import DraftModel, SpeculationSettings
from hybridge.runtime.speculation.step_cost import StepCost
from hybridge.runtime.speculation.verify import accepted_count

__all__ = [
    "DraftLength",
    "DraftModel",
    "DraftRequest",
    "Drafter",
    "Draw",
    "NgramDrafter",
    "Proposal",
    "SpeculationMetrics",
    "SpeculationSettings",
    "StepCost",
    "accepted_count",
]
