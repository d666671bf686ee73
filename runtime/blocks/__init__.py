"""KV blocks and slots of recurrent states: which sequence has which. Counting only: no tensor, no engine."""

from hybridge.runtime.blocks.block_manager import BlockManager
from hybridge.runtime.blocks.block_pool import BlockPool
from hybridge.runtime.blocks.errors import PoolError
from hybridge.runtime.blocks.needs import CacheNeeds
from hybridge.runtime.blocks.reservation import Reservation
from hybridge.runtime.blocks.sequence_memory import SequenceMemory
from hybridge.runtime.blocks.slot_pool import SlotPool

__all__ = ["BlockManager", "BlockPool", "CacheNeeds", "PoolError", "Reservation", "SequenceMemory", "SlotPool"]
