"""Small reads at rising positions, served from large ones."""

from nvckpt.formats.byte_source import ByteSource

_WINDOW = 1 << 20
# Positions further apart than this are read one by one: what lies between is tensor data.
_NEAR = 64 << 10


class Windows:
    """Reads through a window of 1 MiB while positions lie close together, and directly otherwise."""

    def __init__(self, data: ByteSource) -> None:
        self._data = data
        self._start = 0
        self._window = b""
        self._last = -_NEAR

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes, as ByteSource.read_at."""
        at = offset - self._start
        if at >= 0 and at + length <= len(self._window):
            self._last = offset
            return self._window[at : at + length]
        is_near = 0 <= offset - self._last <= _NEAR
        self._last = offset
        available = self._data.size - offset
        if not is_near or length > _WINDOW or length > available or offset < 0:
            return self._data.read_at(offset, length)
        self._start = offset
        self._window = self._data.read_at(offset, min(_WINDOW, available))
        return self._window[:length]
