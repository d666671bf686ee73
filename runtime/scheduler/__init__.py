"""Which sequences advance in the next step. Decides and counts; never touches a tensor or an engine."""

from runtime.scheduler.plan import PlannedRow, StepPlan, Swap
from runtime.scheduler.policy import Fcfs, Policy, Priority
from runtime.scheduler.request import ScheduledRequest
from runtime.scheduler.scheduler import Scheduler
from runtime.scheduler.sequence import ScheduledSequence, State
from runtime.scheduler.settings import SchedulerSettings

__all__ = [
    "Fcfs",
    "PlannedRow",
    "Policy",
    "Priority",
    "ScheduledRequest",
    "ScheduledSequence",
    "Scheduler",
    "SchedulerSettings",
    "State",
    "StepPlan",
    "Swap",
]
