"""OpenAI's completions protocol: reads a request's JSON, writes answers and chunks. Knows no HTTP and no engine.

Parameters that would change the tokens, and that this server does not have, are refused; the rest is ignored, as
clients expect.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from examples.llm_server.generation import Sampling, Token
from examples.llm_server.tokens import Detokenizer, encode
from tritonprobe.model import Exposure, Parts, RequestCost

# What OpenAI has and this server hasn't, with the values that ask for nothing.
_ABSENT: dict[str, tuple[object, ...]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "logprobs": (None,),
    "n": (None, 1),
    "presence_penalty": (None, 0),
    "stop": (None, []),
    "suffix": (None, ""),
    "top_p": (None, 1),
}


class BadRequestError(ValueError):
    """A request that cannot be answered; the message names the parameter and says what would do."""

    def __init__(self, param: str | None, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status


@dataclass(frozen=True, slots=True)
class Completion:
    """What a client asks for."""

    prompt: list[int]
    sampling: Sampling
    stream: bool
    include_usage: bool


def parse(body: bytes, model: str) -> Completion:
    """Reads the JSON of a completion request to `model`. Raises BadRequestError."""
    try:
        return _parse(json.loads(body), model)
    except BadRequestError:
        raise
    except ValueError as error:
        raise BadRequestError(None, f"the body is not JSON: {error}") from None
    except RecursionError:
        raise BadRequestError(None, "the body is nested too deeply to be read") from None


def _parse(asked: object, model: str) -> Completion:
    if not isinstance(asked, dict):
        raise BadRequestError(None, f"the body is {_show(asked)}; expected a JSON object")
    if asked.get("model") not in (None, model):
        raise BadRequestError("model", f"model={_show(asked['model'])}: this server has {model!r}", status=404)
    for name, neutral in _ABSENT.items():
        if asked.get(name) not in neutral:
            raise BadRequestError(name, f"{name}={_show(asked[name])}: this server does not have it; leave it out")
    options = asked.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise BadRequestError("stream_options", f"stream_options={_show(options)}: expected an object")
    return Completion(
        prompt=_prompt(asked.get("prompt")),
        sampling=Sampling(
            max_tokens=_whole(asked, "max_tokens", 16, 1),
            temperature=_temperature(asked.get("temperature")),
            ignore_eos=_flag(asked, "ignore_eos"),
            seed=_whole(asked, "seed", 0, 0),
        ),
        stream=_flag(asked, "stream"),
        include_usage=_flag(options or {}, "include_usage"),
    )


class Writer:
    """Writes what one request gets, token by token: chunks of a stream, or one whole answer at the end."""

    def __init__(self, request_id: str, model: str, prompt_tokens: int) -> None:
        self._head = {"id": request_id, "object": "text_completion", "created": int(time.time()), "model": model}
        self._prompt_tokens = prompt_tokens
        self._detokenizer = Detokenizer()
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._last: Token | None = None

    def chunk(self, token: Token) -> dict[str, Any]:
        """`token` as a chunk of a stream; the last one carries the reason and the cost."""
        self._last = token
        self._tokens.append(token.id)
        self._texts.append(self._detokenizer.feed(token.id, last=token.finish_reason is not None))
        return {**self._head, **_choice(self._texts[-1], [token.id], token), **exposure(token.cost)}

    def whole(self) -> dict[str, Any]:
        """All tokens so far as one answer."""
        assert self._last is not None, "an answer has a token at least"
        choice = _choice("".join(self._texts), self._tokens, self._last)
        return {**self._head, **choice, "usage": self._usage(), **exposure(self._last.cost)}

    def usage_chunk(self) -> dict[str, Any]:
        """What `stream_options.include_usage` asks for after the last token."""
        return {**self._head, "choices": [], "usage": self._usage()}

    def _usage(self) -> dict[str, int]:
        prompt, completion = self._prompt_tokens, len(self._tokens)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _choice(text: str, tokens: list[int], last: Token) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "token_ids": tokens, "finish_reason": last.finish_reason, "logprobs": None}
    return {"choices": [choice]}


def exposure(cost: RequestCost | None) -> dict[str, Any]:
    """``{"tritonprobe": ...}``: seconds of the request's life in a stall, an upper bound on its delay.

    Empty if it was not measured.
    """
    if cost is None:
        return {}

    def seconds(part: Exposure) -> dict[str, float]:
        return {"in_batch": part.in_batch_ns / 1e9, "queued": part.queued_ns / 1e9}

    def parts(life: Parts) -> dict[str, float]:
        return {
            "queue": life.queue_ns / 1e9,
            "execution": life.execution_ns / 1e9,
            "exposure": life.exposure_ns / 1e9,
            "fallback": life.fallback_ns / 1e9,
            "remainder": life.remainder_ns / 1e9,
        }

    timings = {
        "ttft_seconds": None if cost.ttft_ns is None else cost.ttft_ns / 1e9,
        "tpot_seconds": None if cost.tpot_ns is None else cost.tpot_ns / 1e9,
        "exposure_seconds": {"before_first_token": seconds(cost.before), "after_first_token": seconds(cost.after)},
        "parts_seconds": None if cost.parts is None else parts(cost.parts),
    }
    return {"tritonprobe": timings}


def error(message: str, status: int, param: str | None = None) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def sse(data: dict[str, Any]) -> str:
    """One event of a stream."""
    return f"data: {json.dumps(data)}\n\n"


DONE = "data: [DONE]\n\n"


def _prompt(value: object) -> list[int]:
    if isinstance(value, str):
        return encode(value)
    if isinstance(value, list) and all(type(token) is int for token in value):
        return value
    raise BadRequestError("prompt", f"prompt={_show(value)}: expected one string, or one list of token ids")


def _whole(asked: dict[str, Any], name: str, default: int, low: int) -> int:
    value = asked.get(name)
    if value is None:
        return default
    if type(value) is not int or value < low:
        raise BadRequestError(name, f"{name}={_show(value)}: expected a whole number, at least {low}")
    return value


def _flag(asked: dict[str, Any], name: str) -> bool:
    value = asked.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequestError(name, f"{name}={_show(value)}: expected true or false")
    return bool(value)


def _temperature(value: object) -> float:
    if value is None:
        return 0.0
    # Below a hundredth the logits overflow before the choice changes: ask for greedy instead.
    if isinstance(value, (int, float)) and not isinstance(value, bool) and (value == 0 or 0.01 <= value <= 2):
        return float(value)
    raise BadRequestError("temperature", f"temperature={_show(value)}: expected 0 (greedy), or a number from 0.01 to 2")


def _show(value: object) -> str:
    """`value` as JSON, cut short: a message is one line."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
