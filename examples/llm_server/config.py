"""What can be set: the model's sizes and the engine's bounds. Imports neither torch nor the kernels."""

from __future__ import annotations

from dataclasses import dataclass

DTYPES = ("float32", "float16", "bfloat16")
HEAD_DIMS = (16, 32, 64, 128, 256)
"""What the attention kernels take."""

SHORTEST = 32
"""Tokens that a request can have at least: a warm-up has to fit."""
_SIZES = ("layers", "hidden", "heads", "kv_heads", "intermediate", "vocab")


class ConfigError(ValueError):
    """A model that cannot be built; the message names the setting and says what would do."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    layers: int = 2
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 768
    vocab: int = 1024
    max_len: int = 8192
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low in (*((name, 1) for name in _SIZES), ("max_len", SHORTEST)):
            if getattr(self, name) < low:
                raise ConfigError(f"{name}={getattr(self, name)}: expected at least {low}")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype={self.dtype!r}: expected one of {', '.join(DTYPES)}")
        if self.hidden % self.heads or self.head_dim not in HEAD_DIMS:
            sizes = ", ".join(map(str, HEAD_DIMS))
            raise ConfigError(f"hidden={self.hidden} over heads={self.heads}: expected one of {sizes} a head")
        if self.heads % self.kv_heads:
            raise ConfigError(f"kv_heads={self.kv_heads}: expected a divisor of heads={self.heads}")

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """``prefill_tokens`` bounds the prompt tokens of a step; a longer prompt gets a step's prefill to itself.

    ``queue`` is how many requests may wait for one of the ``slots``.
    """

    max_len: int
    vocab: int
    slots: int = 8
    prefill_tokens: int = 8192
    queue: int = 256
