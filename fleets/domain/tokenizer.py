"""Where a model's tokenizer is, as recipes and routers name it."""

from __future__ import annotations

from denvweb.core.errors import InvalidError


def tokenizer_source(name: str) -> tuple[str, str, str]:
    """Repository and revision (`main` when empty) of `hf://org/name@revision`, or the path of `file:///path` or of a bare path.

    InvalidError when it is neither.
    """
    scheme, mark, rest = name.partition("://")
    if not mark:
        return "", "", name
    if scheme == "file" and rest.startswith("/"):
        return "", "", rest
    repository, _, revision = rest.partition("@")
    if scheme == "hf" and repository.count("/") == 1 and all(repository.split("/")):
        return repository, revision, ""
    raise InvalidError(
        f"{name!r} names no tokenizer; write hf://org/name@revision or file:///path/tokenizer.json", code="tokenizer-invalid"
    )
