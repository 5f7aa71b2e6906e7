"""The encoding of everything on the wire, and of a DataStore unless a Locker is given its own.

Byte b becomes the two letters at positions b // 78 and b % 78 of a 78-letter alphabet. It hides
nothing; it keeps every message printable. Both directions work on whole messages at once, since
a loop over the bytes of a 10 MiB message takes seconds.
"""

from __future__ import annotations

_ALPHABET = b"1aA2bB3cC4dD5eE6fF7gG8hH9iI0jJ!kK@lL#mM$nN%oO^pP&qQ*rR(sS)tT/uU?vV=wW+xX;yY:zZ"
_BASE = len(_ALPHABET)

_FIRST_LETTER = bytes(_ALPHABET[byte // _BASE] for byte in range(256))
_SECOND_LETTER = bytes(_ALPHABET[byte % _BASE] for byte in range(256))


def _values(letters: bytes, weight: int) -> bytes:
    table = bytearray(256)
    for position, letter in enumerate(letters):
        table[letter] = position * weight
    return bytes(table)


_FIRST_VALUE = _values(_ALPHABET[: 255 // _BASE + 1], _BASE)
_SECOND_VALUE = _values(_ALPHABET, 1)


def encode(plain: bytes) -> bytes:
    """The letters of these bytes: ASCII, twice as many."""
    letters = bytearray(2 * len(plain))
    letters[0::2] = plain.translate(_FIRST_LETTER)
    letters[1::2] = plain.translate(_SECOND_LETTER)
    return bytes(letters)


def decode(letters: bytes) -> bytes:
    """The bytes these letters stand for; ValueError if they stand for none."""
    # Added up as two long integers: valid letters give at most 255 a byte, so nothing carries.
    first = int.from_bytes(letters[0::2].translate(_FIRST_VALUE), "big")
    second = int.from_bytes(letters[1::2].translate(_SECOND_VALUE), "big")
    try:
        plain = (first + second).to_bytes(len(letters) // 2, "big")
    except OverflowError:
        plain = b""
    # Whatever is not a valid message (a foreign letter, a pair over 255, an odd length) went
    # wrong above in one way or another, and cannot come out as it went in.
    if encode(plain) != letters:
        raise ValueError("not in the wire encoding")
    return plain
