"""A Llama-like decoder with random weights on the kernels of `tritonprobe_kernels`, and its KV cache.

Knows tensors and kernels; knows no requests, threads or clocks. The same seed gives the same weights on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from examples.llm_server.config import ModelConfig
from tritonprobe_kernels import (
    add,
    attention_decode,
    attention_prefill,
    matmul,
    rmsnorm,
    rope,
    rope_tables,
    softmax,
    swiglu,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one sequence adds in one step: a whole prompt (``position`` 0), or the one token that came last.

    ``uniform``, from 0 to 1, is the draw that picks a token when ``temperature`` is above 0.
    """

    slot: int
    tokens: Sequence[int]
    position: int
    temperature: float = 0.0
    uniform: float = 0.0


class Model(Protocol):
    """What the engine needs of a model."""

    def next_tokens(self, pieces: Sequence[Piece]) -> list[int]:
        """Runs one step and gives the next token of each piece. Whole prompts come first."""


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: torch.Tensor
    qkv: torch.Tensor
    o: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Batch:
    """A step as tensors. The first `prompt_tokens` tokens are packed prompts; each later one is one sequence's."""

    tokens: torch.Tensor
    positions: torch.Tensor
    token_slots: torch.Tensor
    last: torch.Tensor
    prompt_tokens: int
    cu_seqlens: torch.Tensor
    max_seqlen: int
    decode_slots: torch.Tensor
    decode_lengths: torch.Tensor


class Decoder:
    """The weights, and a KV cache of ``slots`` sequences of `max_len` tokens."""

    def __init__(self, config: ModelConfig, slots: int, device: torch.device) -> None:
        self._config = config
        self._device = device
        dtype: torch.dtype = getattr(torch, config.dtype)
        generator = torch.Generator().manual_seed(config.seed)

        def weight(rows: int, columns: int) -> torch.Tensor:
            values = torch.randn(rows, columns, generator=generator) * rows**-0.5
            return values.to(device=device, dtype=dtype)

        def ones() -> torch.Tensor:
            return torch.ones(config.hidden, device=device, dtype=dtype)

        def cache() -> torch.Tensor:
            return torch.zeros(slots, config.max_len, config.kv_heads, config.head_dim, device=device, dtype=dtype)

        # Rows of an embedding are read, not multiplied: unit variance, as after a norm.
        self._embedding = weight(config.vocab, config.hidden) * config.vocab**0.5
        self._layers = [
            _Layer(
                attention_norm=ones(),
                qkv=weight(config.hidden, (config.heads + 2 * config.kv_heads) * config.head_dim),
                o=weight(config.hidden, config.hidden),
                mlp_norm=ones(),
                gate_up=weight(config.hidden, 2 * config.intermediate),
                down=weight(config.intermediate, config.hidden),
                keys=cache(),
                values=cache(),
            )
            for _ in range(config.layers)
        ]
        self._norm = ones()
        self._lm_head = weight(config.hidden, config.vocab)
        self._cos, self._sin = rope_tables(config.max_len, config.head_dim, device=device)

    @torch.inference_mode()
    def next_tokens(self, pieces: Sequence[Piece]) -> list[int]:
        """See `Model.next_tokens`. Greedy pieces take the likeliest token."""
        logits = self._logits(self._batch(pieces))
        tokens = logits.argmax(-1)
        drawn = [row for row, piece in enumerate(pieces) if piece.temperature > 0]
        if drawn:
            tokens[drawn] = self._draw(logits[drawn], [pieces[row] for row in drawn])
        found: list[int] = tokens.tolist()
        return found

    def _batch(self, pieces: Sequence[Piece]) -> _Batch:
        def index(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64, device=self._device)

        ends, total = [], 0
        for piece in pieces:
            total += len(piece.tokens)
            ends.append(total)
        prompts = [piece for piece in pieces if piece.position == 0]
        decoding = pieces[len(prompts) :]
        return _Batch(
            tokens=index([token for piece in pieces for token in piece.tokens]),
            positions=index([piece.position + i for piece in pieces for i in range(len(piece.tokens))]),
            token_slots=index([piece.slot for piece in pieces for _ in piece.tokens]),
            last=index([end - 1 for end in ends]),
            prompt_tokens=ends[len(prompts) - 1] if prompts else 0,
            cu_seqlens=index([0, *ends[: len(prompts)]]).to(torch.int32),
            max_seqlen=max((len(piece.tokens) for piece in prompts), default=0),
            decode_slots=index([piece.slot for piece in decoding]),
            decode_lengths=index([piece.position + 1 for piece in decoding]),
        )

    def _logits(self, batch: _Batch) -> torch.Tensor:
        x = self._embedding[batch.tokens]
        for layer in self._layers:
            x = add(x, self._attention(layer, rmsnorm(x, layer.attention_norm), batch))
            x = add(x, self._mlp(layer, rmsnorm(x, layer.mlp_norm)))
        return matmul(rmsnorm(x[batch.last], self._norm), self._lm_head, out_dtype=torch.float32)

    def _attention(self, layer: _Layer, x: torch.Tensor, batch: _Batch) -> torch.Tensor:
        config = self._config
        heads = matmul(x, layer.qkv).view(len(x), -1, config.head_dim)
        q, k, v = heads.split((config.heads, config.kv_heads, config.kv_heads), dim=1)
        q = rope(q, batch.positions, self._cos, self._sin)
        k = rope(k, batch.positions, self._cos, self._sin)
        layer.keys[batch.token_slots, batch.positions] = k
        layer.values[batch.token_slots, batch.positions] = v
        n = batch.prompt_tokens
        parts = []
        if n:
            parts.append(attention_prefill(q[:n], k[:n], v[:n], batch.cu_seqlens, batch.max_seqlen))
        if n < len(x):
            parts.append(attention_decode(q[n:], layer.keys, layer.values, batch.decode_slots, batch.decode_lengths))
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        return matmul(attended.view(len(x), -1), layer.o)

    def _mlp(self, layer: _Layer, x: torch.Tensor) -> torch.Tensor:
        return matmul(swiglu(matmul(x, layer.gate_up)), layer.down)

    def _draw(self, logits: torch.Tensor, pieces: Sequence[Piece]) -> torch.Tensor:
        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=self._device)[:, None]

        chances = softmax(logits / column([piece.temperature for piece in pieces])).cumsum(-1)
        # A sum of floats may end a little below 1: the last token takes what lies beyond.
        drawn = torch.searchsorted(chances, column([piece.uniform for piece in pieces]), right=True)
        return drawn.clamp_max(logits.shape[-1] - 1)[:, 0]
