"""The messages of the training service, as ``interposer/engines/README.md`` describes them.

A message is its length, four bytes, little endian, and that many bytes of JSON, an object. What a client sends is read
into one of the structures here, which says what is wrong with it by field.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Literal

import msgspec

#: Bytes of a message at most.
LONGEST = 64 << 20
_LENGTH = struct.Struct("<I")
HEADER = _LENGTH.size

#: The version of the protocol.
VERSION = 1


class Refused(Exception):
    """A call that is answered with an error: a kind for programs, and a line for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, " ".join(message.split())


Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]
Token = Annotated[int, msgspec.Meta(ge=0)]
Path = Annotated[str, msgspec.Meta(pattern=r"^/", max_length=4096)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class Message(msgspec.Struct, kw_only=True):
    """What all have."""

    id: int
    method: str = ""


class Hello(Message):
    pass


class Status(Message):
    pass




class Encode(Message):
    messages: list[dict[str, Any]] | None = None
    text: str | None = None
    learn: Literal["assistant", "all"] = "assistant"


class OfAdapter(Message):
    adapter: Name


class Open(OfAdapter):
    rank: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    alpha: Positive
    targets: Annotated[list[str], msgspec.Meta(min_length=1, max_length=16)]
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0
    weight: Annotated[float, msgspec.Meta(ge=0.1, le=100)] = 1.0
    dtype: Literal["float32"] | None = None


class Load(OfAdapter):
    path: Path
    optimizer: bool = False


class Save(OfAdapter):
    path: Path
    optimizer: bool = False


class Datum(msgspec.Struct):
    """A sample: position ``i`` is to predict ``targets[i]``."""

    tokens: Annotated[list[Token], msgspec.Meta(min_length=1)]
    targets: list[Token]
    weights: list[float] | None = None
    #: Of the policy that drew the sample.
    logprobs: list[float] | None = None
    advantages: list[float] | None = None
    #: What the client's own loss gives back to each logprob.
    d: list[float] | None = None


class Forward(OfAdapter):
    data: Annotated[list[Datum], msgspec.Meta(min_length=1, max_length=4096)]
    loss: Literal["cross_entropy", "importance_sampling", "ppo", "cispo"] | None = None
    backward: bool = False
    clip_low: Positive = 0.8
    clip_high: Positive = 1.2


class Backward(OfAdapter):
    data: Annotated[list[Datum], msgspec.Meta(min_length=1, max_length=4096)]


class Step(OfAdapter):
    lr: Annotated[float, msgspec.Meta(ge=0, le=10)]
    beta1: Share = 0.9
    beta2: Share = 0.999
    eps: Positive = 1e-8
    weight_decay: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.01
    clip: Positive | None = None


class Publish(OfAdapter):
    pass


class Zero(OfAdapter):
    pass


class Close(OfAdapter):
    pass


METHODS: dict[str, type[Message]] = {
    one.__name__.lower(): one
    for one in (Hello, Status, Encode, Open, Load, Save, Forward, Backward, Step, Publish, Zero, Close)
}

_HEAD = msgspec.json.Decoder(Message)
_READ = {name: msgspec.json.Decoder(of) for name, of in METHODS.items()}


def length(header: bytes) -> int:
    """Of the message that follows."""
    return _LENGTH.unpack(header)[0]


def number(body: bytes) -> int | None:
    """The id of a message, if it has one."""
    try:
        return _HEAD.decode(body).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def read(body: bytes) -> Message:
    """A message of a client's. Raises :class:`Refused`."""
    try:
        method = _HEAD.decode(body).method
        decoder = _READ.get(method)
        if decoder is None:
            raise Refused("unknown_method", f"{method!r} is none of {', '.join(METHODS)}")
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused("bad_request", str(error)) from error


def framed(message: dict[str, Any]) -> bytes:
    """A message as it is sent."""
    body = msgspec.json.encode(message)
    return _LENGTH.pack(len(body)) + body


def whole(datum: Datum, at: int, wanted: tuple[str, ...]) -> None:
    """Raises :class:`Refused` where a list of a datum is missing, or has another length than its tokens."""
    for name in ("targets", "weights", "logprobs", "advantages", "d"):
        values = getattr(datum, name)
        if values is None:
            if name in wanted:
                raise Refused("bad_request", f"data[{at}].{name} is missing")
        elif len(values) != len(datum.tokens):
            raise Refused(
                "bad_request", f"data[{at}].{name} has {len(values)} values, and tokens has {len(datum.tokens)}"
            )
