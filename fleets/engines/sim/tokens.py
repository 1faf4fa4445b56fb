"""The simulated tokenizer: 4 bytes of UTF-8 are one token, little-endian, the last one padded with zeros.

So the same prefix of text is the same prefix of tokens, a router can count tokens as bytes / 4, and a token costs nothing to make.
A prompt is held packed, 4 bytes a token. Every generated token is a blank and three letters, again 4 bytes: an answer that comes
back as history is the very tokens that were generated, and is found in the prefix cache.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping

TOKEN_BYTES = 4
_TOKEN_MASK = 0xFFFFFFFF

_LETTERS = """
the and for are but not you all any can her was one our out day get has him his how man new now old see two way who boy did its let put say
she too use big end far few got had hot lot own run set try ask men why air art bed box car cat cut dog dry due eat eye far fat fit fly fun
gas gun hit ice job key kid law lay led leg lie lip low map mix oil pay per pop pot raw red rid row sad sea sit six sky son sum sun tax tea
ten tie tip top toy war wet win yes yet add age ago aid aim arm bad bag bar bat bay bee bet bit bow bus buy cap cow cry cup dad dam den dig
dip dot ear egg ego elf fan fed fee fig fin fix fog fox fur gap gem gum guy ham hat hay hen hid hip hub hug hut ink inn jam jar jaw jet jog
joy jug lab lad lap lid lit log mad mat mob mud mug net nod nut oak odd opt orb ore owl pad pan paw pea pen pet pie pig pin pit pod pun rag
ram ran rat ray rib rim rob rod rot rub rug sap saw shy sin sip sir ski sob soy spa spy tab tag tan tap tar ton tow tub tug urn van vet vow
wax web wig wit zoo ace ale amp ant ape arc ash awe axe
"""

WORDS: tuple[bytes, ...] = tuple(b" " + word.encode() for word in dict.fromkeys(_LETTERS.split()))[:256]
assert len(WORDS) == 256


def encode_text(text: str) -> bytes:
    """Packed tokens of a text."""
    raw = text.encode("utf-8", "surrogatepass")
    return raw + bytes(-len(raw) % TOKEN_BYTES)


def encode_ids(ids: Iterable[int]) -> bytes:
    """Packed tokens of a prompt that was given as token ids."""
    return array("I", [token & _TOKEN_MASK for token in ids]).tobytes()


def encode_chat(messages: Iterable[Mapping[str, object]]) -> bytes:
    """Packed tokens of a conversation, ended by the opening of the answer. Each part starts on a token of its own."""
    parts: list[bytes] = []
    for message in messages:
        parts += [encode_text(f"<|{message.get('role', 'user')}|>"), encode_text(content_text(message.get("content")))]
    parts.append(encode_text("<|assistant|>"))
    return b"".join(parts)


def content_text(content: object) -> str:
    """A message's content as text: parts of a list are joined, whatever is no text counts by its own JSON-like form."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part["text"]) if isinstance(part, dict) and "text" in part else str(part) for part in content)
    return str(content)


def count(packed: bytes) -> int:
    """Tokens in a packed prompt."""
    return len(packed) // TOKEN_BYTES


def unpack_ids(packed: bytes) -> list[int]:
    """Token ids of a packed prompt."""
    return array("I", packed).tolist()


def words_text(indices: Iterable[int]) -> str:
    """Text of generated tokens, each an index into WORDS."""
    return b"".join([WORDS[index] for index in indices]).decode()


def words_packed(indices: Iterable[int]) -> bytes:
    """Generated tokens packed like a prompt, to be cached behind it."""
    return b"".join([WORDS[index] for index in indices])
