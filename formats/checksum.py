"""The checksums of FORMAT.md 8, in one place: XXH3 with seed 0."""

import xxhash

Buffer = bytes | bytearray | memoryview


def checksum(*parts: Buffer) -> int:
    """XXH3-64 of the parts, one after the other."""
    if len(parts) == 1:
        return xxhash.xxh3_64_intdigest(parts[0])
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return state.intdigest()


class FileHash:
    """XXH3-128 of a whole file, fed in order; `digest` is what `xxhsum -H2` prints, as 16 bytes."""

    def __init__(self) -> None:
        self._state = xxhash.xxh3_128()
        self._known: bytes | None = None

    def settle(self, digest: bytes) -> None:
        """Take the digest from where it was computed, such as a GPU, in the place of the bytes."""
        self._known = digest

    def update(self, part: Buffer) -> None:
        """Take the next bytes of the file."""
        self._state.update(part)

    def digest(self) -> bytes:
        """Most significant byte first."""
        return self._known or self._state.digest()
