"""Names of tensors as they can be shown and stored."""


def encodable(name: str) -> str:
    """The name with a replacement for what UTF-8 cannot spell: JSON and pickles may hold half a surrogate pair."""
    return name if name.isascii() else name.encode("utf-8", "replace").decode("utf-8")
