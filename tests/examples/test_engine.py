"""Scheduling, with a model that counts upwards and can be held up, and can be told to fail."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from examples.llm_server.config import EngineConfig
from examples.llm_server.engine import Engine, Load, PromptError, QueueFullError, StoppedError
from examples.llm_server.generation import Failed, Generation, Sampling, Token
from examples.llm_server.tokens import EOS
from tests.examples.counting import BROKEN, WAIT, Counting


class Client:
    """Takes what the engine hands back."""

    def __init__(self, engine: Engine, prompt: list[int], max_tokens: int = 1, ignore_eos: bool = True) -> None:
        self.told: queue.SimpleQueue[Token | Failed] = queue.SimpleQueue()
        sampling = Sampling(max_tokens=max_tokens, ignore_eos=ignore_eos)
        self.generation: Generation = engine.submit("r", prompt, sampling, self.told.put)

    def next(self) -> Token | Failed:
        return self.told.get(timeout=WAIT)

    def all(self) -> list[Token]:
        """The tokens to the last one."""
        found: list[Token] = []
        while not found or found[-1].finish_reason is None:
            what = self.next()
            assert isinstance(what, Token), what
            found.append(what)
        return found

    def ids(self) -> list[int]:
        return [token.id for token in self.all()]


@pytest.fixture
def model() -> Counting:
    return Counting()


@pytest.fixture
def engine(model: Counting) -> Iterator[Engine]:
    with Engine(model, EngineConfig(max_len=100, vocab=1024, slots=2, prefill_tokens=20, queue=3)) as running:
        yield running
        model.gate.set()


def hold(engine: Engine, model: Counting) -> Client:
    """A request whose first step is entered, and waits for the gate."""
    model.gate.clear()
    client = Client(engine, [1, 2, 3], max_tokens=3)
    assert model.entered.acquire(timeout=WAIT)
    return client


def test_a_request_gets_its_tokens_one_a_step(engine, model):
    assert Client(engine, [1, 2, 3], max_tokens=3).ids() == [4, 5, 6]
    assert [(list(piece.tokens), piece.position) for (piece,) in model.steps] == [([1, 2, 3], 0), ([4], 3), ([5], 4)]


def test_the_last_token_says_why_it_is_the_last_and_what_the_request_cost(engine):
    first, last = Client(engine, [1], max_tokens=2).all()
    assert (first.finish_reason, first.cost) == (None, None)
    assert last.finish_reason == "length"
    assert last.cost is not None
    assert last.cost.tokens == 2
    assert last.cost.ttft_ns is not None


def test_the_end_of_sequence_token_stops_a_generation_unless_ignored(engine):
    stopped = Client(engine, [EOS - 2], max_tokens=5, ignore_eos=False).all()
    assert [t.id for t in stopped] == [EOS - 1, EOS]
    assert stopped[-1].finish_reason == "stop"
    assert len(Client(engine, [EOS - 2], max_tokens=5).ids()) == 5


def test_a_new_request_joins_those_that_run(engine, model):
    old = hold(engine, model)
    new = Client(engine, [10, 11], max_tokens=1)
    model.gate.set()
    assert (old.ids(), new.ids()) == ([4, 5, 6], [12])
    # The prompt comes first, then one token of the request that ran already; their slots differ.
    prompt, running = model.steps[1]
    assert (list(prompt.tokens), list(running.tokens)) == ([10, 11], [4])
    assert prompt.slot != running.slot


def test_requests_beyond_the_slots_wait_for_one_in_their_order(engine, model):
    first = hold(engine, model)
    others = [Client(engine, [10 * i], max_tokens=2) for i in (1, 2, 3)]
    assert engine.load() == Load(waiting=3, running=1, slots=2)
    model.gate.set()
    assert [c.ids() for c in others] == [[11, 12], [21, 22], [31, 32]]
    assert first.ids() == [4, 5, 6]
    assert max(len(step) for step in model.steps) == 2
    started = [piece.tokens[0] for step in model.steps for piece in step if piece.position == 0]
    assert started == [1, 10, 20, 30]


def test_a_step_takes_in_no_more_prompt_tokens_than_its_budget(engine, model):
    first = hold(engine, model)
    long, longer = Client(engine, [5] * 15), Client(engine, [6] * 15)
    model.gate.set()
    assert (long.ids(), longer.ids(), first.ids()) == ([6], [7], [4, 5, 6])
    assert [sum(len(p.tokens) for p in step if p.position == 0) for step in model.steps] == [3, 15, 15]


def test_a_prompt_longer_than_the_budget_has_a_steps_prefill_to_itself(engine, model):
    first = hold(engine, model)
    huge, small = Client(engine, [5] * 60), Client(engine, [7])
    model.gate.set()
    assert (huge.ids(), small.ids(), first.ids()) == ([6], [8], [4, 5, 6])
    assert [len(p.tokens) for p in model.steps[1]] == [60, 1]


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "sentence"),
    [
        ([], 1, "the prompt is empty; send at least one token"),
        ([1] * 101, 1, "the prompt's 101 tokens and max_tokens=1 are more than the 100 tokens that this"),
        ([1] * 50, 51, "the prompt's 50 tokens and max_tokens=51 are more than the 100 tokens that this"),
        ([5, 1024], 1, "token 1024 at place 1 of the prompt is not one of this model's 1024"),
        ([-1], 1, "token -1 at place 0 of the prompt is not one of this model's 1024"),
    ],
)
def test_a_request_that_cannot_run_is_refused_at_once(engine, prompt, max_tokens, sentence):
    with pytest.raises(PromptError, match=sentence):
        Client(engine, prompt, max_tokens)


def test_a_request_may_fill_its_slot(engine):
    assert len(Client(engine, [1] * 60, max_tokens=40).ids()) == 40


def test_the_queue_is_bounded(engine, model):
    first = hold(engine, model)
    waiting = [Client(engine, [10]) for _ in range(3)]
    with pytest.raises(QueueFullError, match="3 requests are waiting already; try again later"):
        Client(engine, [10])
    model.gate.set()
    assert [c.ids() for c in (first, *waiting)] == [[4, 5, 6], [11], [11], [11]]
    assert Client(engine, [10]).ids() == [11]


def test_a_step_that_raises_fails_its_own_requests_and_no_others(engine, model):
    old = hold(engine, model)
    broken, later = Client(engine, [BROKEN]), Client(engine, [10], max_tokens=2)
    model.gate.set()
    assert isinstance(old.next(), Token)  # its first step was fine
    for client in (old, broken):
        failed = client.next()
        assert failed == Failed("the step that ran this request failed: ArithmeticError: broken on purpose", 500)
    assert later.ids() == [11, 12]
    assert engine.load().running == 0
    assert [Client(engine, [1]).ids() for _ in range(5)] == [[2]] * 5  # all slots are free again


def test_a_cancelled_request_frees_its_slot(engine, model):
    running = hold(engine, model)
    other = Client(engine, [20], max_tokens=3)
    waiting = Client(engine, [10], max_tokens=2)
    engine.cancel(running.generation)
    model.gate.set()
    assert waiting.ids() == [11, 12]
    assert other.ids() == [21, 22, 23]
    assert running.told.empty()
    assert len(model.steps[0]) == 1
    assert all(list(piece.tokens) != [4] for step in model.steps[1:] for piece in step)


def test_a_request_cancelled_while_it_waits_never_runs(engine, model):
    running = hold(engine, model)
    waiting = Client(engine, [10], max_tokens=2)
    engine.cancel(waiting.generation)
    model.gate.set()
    assert running.ids() == [4, 5, 6]
    assert waiting.told.empty()
    assert all(list(piece.tokens) != [10] for step in model.steps for piece in step)


def test_cancelling_what_has_ended_changes_nothing(engine):
    client = Client(engine, [1])
    assert client.ids() == [2]
    engine.cancel(client.generation)
    assert Client(engine, [1]).ids() == [2]


def test_a_client_that_cannot_be_told_is_dropped(engine):
    def hung_up(_: Token | Failed) -> None:
        raise RuntimeError("nobody is there")

    engine.submit("gone", [1], Sampling(max_tokens=50), hung_up)
    assert Client(engine, [1]).ids() == [2]
    assert Client(engine, [1]).ids() == [2]
    assert engine.load().running == 0


def test_stopping_fails_what_has_not_finished(engine, model):
    running = hold(engine, model)
    waiting = Client(engine, [10])
    stopper = threading.Thread(target=engine.stop)
    stopper.start()
    while True:  # until stop() has told the engine: from then on it takes no more
        try:
            Client(engine, [20])
        except StoppedError:
            break
        except QueueFullError:
            pass
    model.gate.set()
    stopper.join(WAIT)
    assert not engine.alive
    assert isinstance(running.next(), Token)
    for client in (running, waiting):
        assert client.next() == Failed("the server shut down before this request finished", 503)
