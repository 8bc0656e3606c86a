"""The decoder against a plain torch forward that knows no cache, no batch and no kernel."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from examples.llm_server.config import ConfigError, EngineConfig, ModelConfig
from examples.llm_server.engine import Engine
from examples.llm_server.generation import Failed, Sampling, Token
from examples.llm_server.model import Decoder, Piece

CONFIG = ModelConfig(layers=2, hidden=64, heads=4, kv_heads=2, intermediate=96, vocab=300, max_len=64, seed=3)
PROMPTS = ([5, 17, 250, 3], [9], list(range(40, 73)))
STEPS = 6
CPU = torch.device("cpu")


def plain_logits(config: ModelConfig, tokens: Sequence[int]) -> torch.Tensor:
    """The logits after `tokens`, computed anew from the seed: Llama as the paper writes it."""
    generator = torch.Generator().manual_seed(config.seed)

    def weight(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * rows**-0.5

    def norm(x: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()

    def rotate(x: torch.Tensor) -> torch.Tensor:
        half = config.head_dim // 2
        angle = torch.arange(len(x))[:, None, None] * 10_000.0 ** (-torch.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)

    sizes = [config.heads * config.head_dim, config.kv_heads * config.head_dim, config.kv_heads * config.head_dim]
    x = (weight(config.vocab, config.hidden) * config.vocab**0.5)[list(tokens)]
    for _ in range(config.layers):
        qkv, o = weight(config.hidden, sum(sizes)), weight(config.hidden, config.hidden)
        gate_up, down = weight(config.hidden, 2 * config.intermediate), weight(config.intermediate, config.hidden)
        q, k, v = (part.view(len(x), -1, config.head_dim) for part in (norm(x) @ qkv).split(sizes, dim=1))
        q, k = rotate(q), rotate(k)
        shared = config.heads // config.kv_heads
        k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * config.head_dim**-0.5
        scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), float("-inf"))
        x = x + torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(len(x), -1) @ o
        gate, up = (norm(x) @ gate_up).chunk(2, dim=-1)
        x = x + (gate * gate.sigmoid() * up) @ down
    return norm(x[-1]) @ weight(config.hidden, config.vocab)


def plain_greedy(prompt: Sequence[int], steps: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(steps):
        tokens.append(int(plain_logits(CONFIG, tokens).argmax()))
    return tokens[len(prompt) :]


@pytest.fixture
def decoder(compile_only_device: None) -> Decoder:
    return Decoder(CONFIG, slots=4, device=CPU)


def run(engine: Engine, prompts: Sequence[list[int]], temperature: float = 0.0, seed: int = 0) -> list[list[int]]:
    """Submits all prompts at once, and gives the tokens of each."""
    feeds: list[queue.SimpleQueue[Token | Failed]] = [queue.SimpleQueue() for _ in prompts]
    for i, (prompt, feed) in enumerate(zip(prompts, feeds, strict=True)):
        engine.submit(
            f"r{i}", prompt, Sampling(max_tokens=STEPS, temperature=temperature, ignore_eos=True, seed=seed), feed.put
        )
    found = []
    for feed in feeds:
        told = [feed.get(timeout=120) for _ in range(STEPS)]
        assert all(isinstance(what, Token) for what in told), told
        found.append([what.id for what in told if isinstance(what, Token)])
    return found


def test_greedy_tokens_are_those_of_a_plain_forward_alone_and_in_a_batch(decoder):
    expected = [plain_greedy(prompt, STEPS) for prompt in PROMPTS]
    assert len({tuple(tokens) for tokens in expected}) == len(PROMPTS)  # prompts that agree would prove nothing
    with Engine(decoder, EngineConfig(CONFIG.max_len, CONFIG.vocab, slots=4)) as engine:
        assert [run(engine, [prompt])[0] for prompt in PROMPTS] == expected
        assert run(engine, PROMPTS) == expected
        # More requests than slots: slots are handed on, and what lay in them before must not be seen.
        assert run(engine, PROMPTS * 3) == expected * 3


def test_the_same_seed_draws_the_same_tokens_again(decoder):
    with Engine(decoder, EngineConfig(CONFIG.max_len, CONFIG.vocab, slots=4)) as engine:
        prompt = [PROMPTS[0]]
        drawn = {seed: run(engine, prompt, temperature=1.0, seed=seed)[0] for seed in (0, 1)}
        assert run(engine, prompt, temperature=1.0, seed=1)[0] == drawn[1] != drawn[0]


def test_tokens_are_drawn_by_their_chances(decoder):
    """Draws at the middle of each token's share of the cumulated softmax give that token."""
    chances = plain_logits(CONFIG, PROMPTS[0]).softmax(-1).double()
    ends = chances.cumsum(-1)
    likely = chances.topk(3).indices.tolist()
    for token in likely:
        middle = float(ends[token] - chances[token] / 2)
        assert decoder.next_tokens([Piece(0, PROMPTS[0], 0, temperature=1.0, uniform=middle)]) == [token]


def test_the_seed_makes_the_weights(decoder):
    def first_tokens(of: Decoder) -> list[int]:
        return [of.next_tokens([Piece(0, prompt, 0)])[0] for prompt in PROMPTS]

    assert first_tokens(Decoder(CONFIG, 1, CPU)) == first_tokens(decoder)
    assert first_tokens(Decoder(replace(CONFIG, seed=4), 1, CPU)) != first_tokens(decoder)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"layers": 0}, "layers=0: expected at least 1"),
        ({"max_len": 8}, "max_len=8: expected at least 32"),
        ({"heads": 3}, "hidden=256 over heads=3: expected one of 16, 32, 64, 128, 256 a head"),
        ({"hidden": 192}, "hidden=192 over heads=4: expected one of 16, 32, 64, 128, 256 a head"),
        ({"kv_heads": 3}, "kv_heads=3: expected a divisor of heads=4"),
        ({"dtype": "int8"}, "dtype='int8': expected one of float32, float16, bfloat16"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        ModelConfig(**changes)
