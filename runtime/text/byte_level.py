"""The byte-level alphabet: how byte-level BPE spells the 256 bytes with printable characters (GPT-2)."""

from __future__ import annotations


def byte_from_character() -> dict[str, int]:
    """Character -> byte. Printable Latin-1 characters stand for themselves, the others follow from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    shifted = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(shifted)}


_BYTES = byte_from_character()


def bytes_from_token(token: str) -> bytes:
    """The bytes that ``token`` spells; a token with other characters (an added one) stands for its own UTF-8."""
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:
        return token.encode("utf-8")
