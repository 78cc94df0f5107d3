#!/usr/bin/env python3
"""Computes the test vectors of the mechanism "PSK1" from its description in docs/security.md, with Python's own HMAC and
without any code of the project. The numbers that it prints stand in src/authentication/preshared/tests.rs."""

import hmac
import struct


def word(value):
    return struct.pack(">I", value)


def opaque(data):
    return word(len(data)) + data + bytes(-len(data) % 4)


def property_set(*values):
    entries = b"".join(word(number + 1) + opaque(word(value)) for number, value in enumerate(values))
    return word(len(values)) + entries


def proof(key, *fields):
    framed = b"".join(word(len(field)) + field for field in fields)
    return hmac.new(key, framed, "sha256").digest()


KEY = bytes(range(32))
INITIATOR_PROPERTIES = property_set(4096, 4096, 1048576, 16, 1)
RESPONDER_PROPERTIES = property_set(8192, 16384, 1048576, 16, 0)

hello = b"PSK1" + word(1) + opaque(b"2026-11") + opaque(b"alpha") + b"\x11" * 32
challenge = b"PSK1" + word(2) + opaque(b"beta") + b"\x22" * 32
said = (INITIATOR_PROPERTIES, hello, RESPONDER_PROPERTIES, challenge)
responder = proof(KEY, b"rpcrdma psk1 responder", *said)
initiator = proof(KEY, b"rpcrdma psk1 initiator", *said, responder)
accepted = proof(KEY, b"rpcrdma psk1 accepted", *said, responder, initiator)

for name, message in [
    ("INITIATOR_PROPERTIES", INITIATOR_PROPERTIES),
    ("RESPONDER_PROPERTIES", RESPONDER_PROPERTIES),
    ("HELLO", hello),
    ("CHALLENGE", challenge + responder),
    ("PROOF", b"PSK1" + word(3) + initiator),
    ("ACCEPTED", b"PSK1" + word(4) + accepted),
]:
    print(f'const {name}: &str = "')
    digits = message.hex()
    for start in range(0, len(digits), 64):
        print("    " + " ".join(digits[start + at : start + at + 8] for at in range(0, 64, 8)).rstrip())
    print('";')
