"""Speculative decoding: who proposes tokens, how many, and which of them the model accepts. No engine, no memory."""

from runtime.speculation.candidate_count import CandidateCount
from runtime.speculation.drafter import Drafter, Draw, Wanted
from runtime.speculation.metrics import SpeculationMetrics
from runtime.speculation.ngram_drafter import NgramDrafter
from runtime.speculation.proposal import Proposal
from runtime.speculation.settings import DraftModel, SpeculationSettings
from runtime.speculation.step_cost import StepCost
from runtime.speculation.verify import accepted_count

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
