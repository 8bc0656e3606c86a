import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.llm_server.generation import Token
from examples.llm_server.protocol import BadRequestError, Completion, Writer, parse, sse
from tritonprobe.model import Exposure, Parts, RequestCost

MODEL = "tiny"


def asked(**parameters: object) -> Completion:
    return parse(json.dumps({"prompt": [1, 2], **parameters}).encode(), MODEL)


def test_a_prompt_of_token_ids_is_taken_as_it_is():
    found = asked(max_tokens=3, temperature=0.5, seed=7, ignore_eos=True, stream=True)
    assert found.prompt == [1, 2]
    assert found.stream
    assert (found.sampling.max_tokens, found.sampling.temperature) == (3, 0.5)
    assert (found.sampling.seed, found.sampling.ignore_eos) == (7, True)


def test_a_string_becomes_its_bytes():
    assert asked(prompt="hé").prompt == [0x68, 0xC3, 0xA9]


def test_without_parameters_the_answer_is_greedy_short_and_whole():
    found = asked()
    assert (found.sampling.max_tokens, found.sampling.temperature, found.stream) == (16, 0.0, False)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"prompt": None}, "prompt=null: expected one string, or one list of token ids"),
        ({"prompt": [[1], [2]]}, "prompt=[[1], [2]]: expected one string, or one list of token ids"),
        ({"prompt": [True]}, "prompt=[true]: expected one string, or one list of token ids"),
        ({"max_tokens": 0}, "max_tokens=0: expected a whole number, at least 1"),
        ({"max_tokens": True}, "max_tokens=true: expected a whole number, at least 1"),
        ({"max_tokens": 1.5}, "max_tokens=1.5: expected a whole number, at least 1"),
        ({"seed": -1}, "seed=-1: expected a whole number, at least 0"),
        ({"temperature": -1}, "temperature=-1: expected 0 (greedy), or a number from 0.01 to 2"),
        ({"temperature": float("nan")}, "temperature=NaN: expected 0 (greedy), or a number from 0.01 to 2"),
        ({"temperature": 10**400}, f"temperature=1{'0' * 36}...: expected 0 (greedy), or a number from 0.01 to 2"),
        ({"stream": "yes"}, 'stream="yes": expected true or false'),
        ({"stream_options": 1}, "stream_options=1: expected an object"),
        ({"n": 2}, "n=2: this server does not have it; leave it out"),
        ({"top_p": 0.9}, "top_p=0.9: this server does not have it; leave it out"),
        ({"model": "other"}, "model=\"other\": this server has 'tiny'"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_a_sentence_that_names_it(parameters, sentence):
    with pytest.raises(BadRequestError) as refused:
        asked(**parameters)
    assert str(refused.value) == sentence
    assert refused.value.param == next(iter(parameters))


def test_a_model_that_is_not_here_is_not_found():
    with pytest.raises(BadRequestError) as refused:
        asked(model="other")
    assert refused.value.status == 404


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[1]", b"3", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(body: bytes):
    with pytest.raises(BadRequestError, match="the body is"):
        parse(body, MODEL)


def test_parameters_that_change_no_token_are_ignored():
    assert asked(user="somebody", n=1, stop=[], top_p=1.0) == asked()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(
    ["prompt", "max_tokens", "stream", "temperature", "seed", "ignore_eos", "model", "stream_options", "n", "stop"]
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # a busy machine is no failure
@given(st.dictionaries(names, json_values))
def test_any_json_is_read_or_refused(parameters):
    try:
        found = parse(json.dumps(parameters).encode(), MODEL)
    except BadRequestError as refused:
        message = str(refused)
    else:
        message = ""
        assert found.sampling.max_tokens >= 1
    assert "\n" not in message


COST = RequestCost(
    id="r", model=MODEL, start_ns=0, first_token_ns=4_100_000_000, end_ns=6_100_000_000, unix_ns=0, tokens=3,
    before=Exposure(in_batch_ns=900_000_000, queued_ns=3_100_000_000), after=Exposure(in_batch_ns=500_000_000),
    parts=Parts(100_000_000, 1_200_000_000, 4_500_000_000, 0, 300_000_000),
)  # fmt: skip


def test_the_last_chunk_says_what_the_request_stood_behind():
    writer = Writer("r", MODEL, prompt_tokens=5)
    assert "tritonprobe" not in writer.chunk(Token(97))
    last = writer.chunk(Token(98, "length", COST))
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["tritonprobe"] == {
        "ttft_seconds": 4.1,
        "tpot_seconds": 1.0,
        "exposure_seconds": {
            "before_first_token": {"in_batch": 0.9, "queued": 3.1},
            "after_first_token": {"in_batch": 0.5, "queued": 0.0},
        },
        "parts_seconds": {"queue": 0.1, "execution": 1.2, "exposure": 4.5, "fallback": 0.0, "remainder": 0.3},
    }
    assert writer.whole()["tritonprobe"] == last["tritonprobe"]


def test_what_was_not_measured_is_absent():
    assert "tritonprobe" not in Writer("r", MODEL, prompt_tokens=5).chunk(Token(97, "length"))


def test_an_answer_adds_up_its_tokens():
    writer = Writer("r", MODEL, prompt_tokens=5)
    chunks = [writer.chunk(token) for token in (Token(0xC3), Token(0xA9), Token(97, "stop"))]
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["", "é", "a"]
    assert writer.whole()["choices"] == [
        {"index": 0, "text": "éa", "token_ids": [0xC3, 0xA9, 97], "finish_reason": "stop", "logprobs": None}
    ]
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert writer.whole()["usage"] == writer.usage_chunk()["usage"] == usage
    assert writer.usage_chunk()["choices"] == []


def test_an_event_is_one_line():
    assert sse({"text": "a\n\nb"}) == 'data: {"text": "a\\n\\nb"}\n\n'
