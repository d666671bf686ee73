"""Speculative decoding: who proposes tokens, how many, and which of them the model accepts. No engine, no memory."""

from hybridge.runtime.speculation.candidate_count import CandidateCount
from hybridge.runtime.speculation.drafter import Drafter, Draw, Wanted
from hybridge.runtime.speculation.metrics import SpeculationMetrics
from hybridge.runtime.speculation.ngram_drafter import NgramDrafter
from hybridge.runtime.speculation.proposal import Proposal
from hybridge.runtime.speculation.settings import DraftModel, SpeculationSettings
from hybridge.runtime.speculation.step_cost import StepCost
from hybridge.runtime.speculation.verify import accepted_count

__all__ = [
    "CandidateCount",
    "DraftModel",
    "Drafter",
    "Draw",
    "NgramDrafter",
    "Proposal",
    "SpeculationMetrics",
    "SpeculationSettings",
    "StepCost",
    "Wanted",
    "accepted_count",
]
