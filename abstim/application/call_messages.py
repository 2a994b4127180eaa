"""Messages between the shim in a program's process and abstim: one table, from which both sides are made.

A message is a head of two 32-bit numbers (which message, bytes of payload), its fields, each of 64 bits, and the
payload.
A reply, to messages that have one, is a head (error of CUDA's, bytes of payload), fields and payload.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from functional.errors import InputError

HEAD = struct.Struct("<II")


@dataclass(frozen=True)
class Message:
    """`request` and `reply`: names of the fields; None for what is only told. `payload`: what else it holds."""

    name: str
    request: tuple[str, ...]
    reply: tuple[str, ...] | None
    payload: str = ""
    request_layout: struct.Struct = field(init=False)
    reply_layout: struct.Struct = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "request_layout", struct.Struct(f"<{len(self.request)}Q"))
        object.__setattr__(self, "reply_layout", struct.Struct(f"<{len(self.reply or ())}Q"))


def _message(name: str, request: str, reply: str | None, payload: str = "") -> Message:
    return Message(name, tuple(request.split()), None if reply is None else tuple(reply.split()), payload)


MESSAGES = (
    _message("hello", "process", "memory_start memory_bytes"),
    _message("device", "", "memory_bytes", "reply: name in 256 bytes, then number and value of every attribute, int32"),
    _message("module", "kind", "module", "a fat binary (kind 0) or PTX (kind 1)"),
    _message("part", "module part", ""),  # the part's functions and variables are the module's, too
    _message("parse", "module", ""),
    _message("function", "module", "function", "its name; reply: offset and bytes of each parameter, uint32"),
    _message("variable", "module", "address bytes", "its name"),
    _message("allocate", "bytes kind", "address"),
    _message("release", "address", ""),
    _message("inside", "address bytes", ""),  # of one allocation, variable, or a module's constants
    _message("usage", "", "free_bytes total_bytes"),
    _message(
        "launch", "function grid_x grid_y grid_z block_x block_y block_z shared_bytes stream cooperative "
        "cluster_x cluster_y cluster_z", "lasting",
        "the parameter block; reply: what the kernel printed",
    ),
    _message("attributes", "function", "shared_bytes const_bytes local_bytes max_threads registers ptx_version "
             "binary_version"),
    _message("occupancy", "function threads shared_bytes", "blocks"),
    _message("texture", "address width height depth pitch bits kind channels linear normalized as_float modes border",
             "handle"),
    _message("tensor_map", "element address interleave swizzle fill_nan pixels", "", "of each axis size, box, step, "
             "stride in bytes, and the lower and upper corner of im2col, int64; reply: the map"),
    _message("transfer", "stream bytes direction", None),
    _message("stream", "stream independent", None),
    _message("record", "event stream", None),
    _message("wait", "event stream", None),
    _message("synchronize", "stream everything", None),
    _message("elapsed", "start end", "picoseconds"),
    _message("missing", "", None, "the call that is not there"),
)  # fmt: skip
BY_NAME = {message.name: message for message in MESSAGES}


def takes_payload(message: Message) -> bool:
    """Does a request have one?"""
    return bool(message.payload.partition("reply:")[0])


def header() -> str:
    """The table as a C header."""
    lines = ["// Made by abstim/application/call_messages.py", "#pragma once", "#include <stdint.h>"]
    for number, message in enumerate(MESSAGES):
        lines += ["", f"enum {{ MESSAGE_{message.name.upper()} = {number} }};  // {message.payload}".rstrip("/ ")]
        lines += [_struct(f"{message.name}_request", message.request)]
        if message.reply is not None:
            lines += [_struct(f"{message.name}_reply", message.reply)]
    return "\n".join(lines) + "\n"


def _struct(name: str, fields: Sequence[str]) -> str:
    return f"struct {name} {{ " + "".join(f"uint64_t {name}; " for name in fields) + "};"


@dataclass(frozen=True)
class Request:
    """A message that has come."""

    message: Message
    values: dict[str, int]
    payload: bytes


def receive(stream: BinaryIO) -> Request | None:
    """The next message; None once the other side has closed. Raises InputError for what is none."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    number, payload_bytes = HEAD.unpack(head)
    if number >= len(MESSAGES):
        raise InputError("the program wrote to the socket that its CUDA calls go through; it cannot run")
    message = MESSAGES[number]
    values = stream.read(message.request_layout.size)
    payload = stream.read(payload_bytes) if payload_bytes else b""
    if len(values) + len(payload) < message.request_layout.size + payload_bytes:
        return None
    return Request(message, dict(zip(message.request, message.request_layout.unpack(values), strict=True)), payload)


def reply(message: Message, error: int = 0, values: Sequence[int] = (), payload: bytes = b"") -> bytes:
    """The bytes of a reply; without values, those are 0."""
    found = values or (0,) * len(message.reply or ())
    return HEAD.pack(error, len(payload)) + message.reply_layout.pack(*found) + payload
