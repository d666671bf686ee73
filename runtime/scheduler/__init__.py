"""Which sequences advance in the next step. Plans and counts; never touches a tensor or an engine."""

from hybridge.runtime.scheduler.plan import NewBlock, PlannedRow, RepeatedPlan, StepPlan, Swap
from hybridge.runtime.scheduler.policy import Fcfs, Policy, Priority
from hybridge.runtime.scheduler.request import ScheduledRequest
from hybridge.runtime.scheduler.scheduler import Scheduler
from hybridge.runtime.scheduler.sequence import ScheduledSequence, State
from hybridge.runtime.scheduler.settings import SchedulerSettings

__all__ = [
    "Fcfs",
    "NewBlock",
    "PlannedRow",
    "Policy",
    "Priority",
    "RepeatedPlan",
    "ScheduledRequest",
    "ScheduledSequence",
    "Scheduler",
    "SchedulerSettings",
    "State",
    "StepPlan",
    "Swap",
]
