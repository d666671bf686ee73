"""Who holds which KV block and which slot of recurrent states. Counting only: no tensor, no engine."""

from runtime.blocks.block_manager import BlockManager
from runtime.blocks.block_pool import BlockPool
from runtime.blocks.errors import PoolError
from runtime.blocks.needs import CacheNeeds
from runtime.blocks.reservation import Reservation
from runtime.blocks.sequence_memory import SequenceMemory
from runtime.blocks.slot_pool import SlotPool

__all__ = ["BlockManager", "BlockPool", "CacheNeeds", "PoolError", "Reservation", "SequenceMemory", "SlotPool"]
