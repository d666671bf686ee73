"""The states of one layer, as declared in config.json."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.names import conv_state, past_key, past_value, recurrent_state


@dataclass(frozen=True)
class KVLayerConfig:
    """The KV cache of one attention layer; ``sliding_window`` counts tokens, None is full attention.

    latent_dim: in latent attention, the channels of a cached key that are its latent, which come first. Keys are the
    values too, and stored once. None: keys and values.
    """

    num_kv_heads: int
    head_dim: int
    sliding_window: int | None = None
    latent_dim: int | None = None

    @property
    def parts(self) -> int:
        """Tensors that a token has in the cache: a key and a value, or one that is both."""
        return 2 if self.latent_dim is None else 1

    def state_names(self, k: int) -> tuple[str, ...]:
        """The cache inputs of the layer with local index ``k`` in the dense layout, in graph order."""
        return (past_key(k), past_value(k))[: self.parts]


@dataclass(frozen=True)
class RecurrentLayerConfig:
    """The states of one recurrent layer: conv [conv_dim, conv_kernel], recurrent [num_heads, head_dim, state_size].

    Without heads (a short convolution) there is no recurrent state, without channels (lightning attention) no conv
    state. ring_heads: heads of B or of the keys in the ring of a state, 0 without a ring. ring_decays: decays in it of
    one head and token.
    """

    num_heads: int
    head_dim: int
    state_size: int
    conv_dim: int
    conv_kernel: int
    ring_heads: int = 0
    ring_decays: int = 0

    @property
    def has_recurrent_state(self) -> bool:
        return self.num_heads > 0

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of one row's states, in the order of ``state_names``."""
        conv = ((self.conv_dim, self.conv_kernel),) if self.has_conv_state else ()
        recurrent = ((self.num_heads, self.head_dim, self.state_size),) if self.has_recurrent_state else ()
        return (*conv, *recurrent)

    @property
    def has_ring(self) -> bool:
        return self.ring_heads > 0

    @property
    def has_conv_state(self) -> bool:
        return self.conv_dim > 0

    def state_names(self, r: int) -> tuple[str, ...]:
        """The state inputs of the layer with local index ``r``, in graph order."""
        conv = (conv_state(r),) if self.has_conv_state else ()
        return (*conv, recurrent_state(r)) if self.has_recurrent_state else conv
