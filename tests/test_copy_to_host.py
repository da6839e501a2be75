"""Streams brought back from a device: in their order, apart from what lies on the host already."""

import numpy as np

from nvckpt.codecs.blocks import Block, Stream
from nvckpt.codecs.cuda_transfer import copy_to_host


class DeviceArray:
    """An array that says it is on a device, and is copied when asked."""

    __cuda_array_interface__ = {"version": 3}  # noqa: RUF012 - as libraries have it

    def __init__(self, data):
        self.data, self.size = data, len(data)

    def __len__(self):
        return self.size

    def get(self, stream, out, blocking):
        assert stream == "stream"
        assert not blocking
        out[:] = np.frombuffer(self.data, np.uint8)


def test_every_stream_of_the_device_begins_at_a_multiple_of_16():
    first = Block(
        2, 4, (Stream(32, 9, DeviceArray(b"abc")), Stream(0, 2, b"ho"), Stream(16, 40, DeviceArray(b"d" * 17), 4, 7))
    )
    second = Block(0, 0, (Stream(32, 1, DeviceArray(b"e")),))
    out = np.full(80, 0xDD, np.uint8)
    copied, used = copy_to_host([first, second], out, "stream")
    assert used == 64
    assert out.tobytes() == b"abc".ljust(16, b"\xdd") + (b"d" * 17).ljust(32, b"\xdd") + b"e".ljust(32, b"\xdd")
    assert [[bytes(s.data) for s in block.streams] for block in copied] == [[b"abc", b"ho", b"d" * 17], [b"e"]]
    described = [(s.codec_id, s.original_size, s.codec_param, s.library_version) for s in copied[0].streams]
    assert described == [(32, 9, 0, 0), (0, 2, 0, 0), (16, 40, 4, 7)]
    assert (copied[0].transform_id, copied[0].transform_param) == (2, 4)
