"""Messages between the shim in a program's process and abstim: one table, from which both sides are made.

A message is a head of two 32-bit numbers (which message, bytes of payload), its fields, each of 64 bits, and the
payload. A reply, to messages that have one, is a head (error of CUDA's, bytes of payload), fields and payload."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO

from functional.errors import refuse
from functional.files import toml_beside

HEAD = struct.Struct("<II")


@dataclass(frozen=True)
class Message:
    """`request` and `reply`: names of the fields; None for what is only told. `payload`: what else it holds."""

    name: str
    request: tuple[str, ...]
    reply: tuple[str, ...] | None
    payload: str = ""

    @property
    def takes_payload(self) -> bool:
        """Does a request have one?"""
        return bool(self.payload.partition("reply:")[0])

    @cached_property
    def request_layout(self) -> struct.Struct:
        """Of the fields, each of 64 bits."""
        return struct.Struct(f"<{len(self.request)}Q")

    @cached_property
    def reply_layout(self) -> struct.Struct:
        """The same of a reply."""
        return struct.Struct(f"<{len(self.reply or ())}Q")


def _read(name: str, said: dict[str, str]) -> Message:
    reply = tuple(said["reply"].split()) if "reply" in said else None
    return Message(name, tuple(said.get("request", "").split()), reply, said.get("payload", ""))


MESSAGES = tuple(_read(name, said) for name, said in toml_beside(__file__, "messages.toml").items())


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
    refuse(number >= len(MESSAGES), "the program wrote to the socket that its CUDA calls go through; it cannot run")
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
