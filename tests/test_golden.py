"""The committed archives: those that must decode for ever, and those that must be refused for ever."""

import json
from pathlib import Path

import make_golden
import pytest

from nvckpt.decompression import decode_all
from nvckpt.engines import CpuEngine
from nvckpt.formats import errors
from nvckpt.formats.byte_source import MemoryBytes
from nvckpt.formats.container import ArchiveReader
from nvckpt.formats.errors import FormatError, UnsupportedArchiveError
from nvckpt.frames import decode_frame

DECODE = Path(__file__).parent / "golden" / "decode"
FAIL = Path(__file__).parent / "golden" / "fail"
SOUND = sorted(path.stem for path in DECODE.glob("*.nvckpt"))
BROKEN = json.loads((FAIL / "expected.json").read_text())


class Collected(bytearray):
    """An output in memory."""

    def write(self, data):
        self.extend(data)


def restore(archive: bytes) -> bytes:
    """Decode everything and read the description, with every check there is."""
    out = Collected()
    reader = ArchiveReader(MemoryBytes(archive))
    decode_all(reader, CpuEngine(1), out)
    assert reader.description is not None
    return bytes(out)


@pytest.mark.parametrize("name", SOUND)
def test_sound_archive_decodes_to_its_original(name):
    """Every archive of version 1 stays readable by every later release, bit for bit."""
    assert restore((DECODE / f"{name}.nvckpt").read_bytes()) == (DECODE / name).read_bytes()


@pytest.mark.parametrize("name", BROKEN)
def test_broken_archive_is_refused_for_its_reason(name):
    """An archive that breaks one rule of FORMAT.md, with checksums made right, gets the error the page names."""
    with pytest.raises(FormatError) as caught:
        restore((FAIL / f"{name}.nvckpt").read_bytes())
    assert type(caught.value) is getattr(errors, BROKEN[name]["error"])
    assert BROKEN[name]["says"] in str(caught.value)


def test_no_golden_file_is_missing_or_unknown():
    """A lost file must not pass as a test that was not run."""
    assert set(SOUND) - {make_golden.EXAMPLE} == set(make_golden.SOUND)
    assert set(BROKEN) == set(make_golden.BROKEN) == {path.stem for path in FAIL.glob("*.nvckpt")}
    assert all((DECODE / name).is_file() for name in SOUND)


def test_golden_files_are_small():
    """They travel with the source."""
    assert all(path.stat().st_size <= 3 << 10 for path in DECODE.iterdir())
    assert all(path.stat().st_size <= 9 << 10 for path in FAIL.iterdir() if path.suffix == ".nvckpt")


@pytest.mark.parametrize("name", ["unknown_codec", "unknown_transform", "reference"])
def test_archive_with_an_unknown_frame_can_still_be_listed(name):
    """The answer `partly`: listing works, decoding that frame fails."""
    reader = ArchiveReader(MemoryBytes((FAIL / f"{name}.nvckpt").read_bytes()))
    assert len(reader.frames) == 1
    with pytest.raises(UnsupportedArchiveError):
        decode_frame(reader, 0)


def test_message_for_a_future_version_names_both_versions():
    """A person must see what to install."""
    with pytest.raises(UnsupportedArchiveError, match=r"version 2.*reads up to 1.*install a newer nvckpt"):
        restore((FAIL / "future_version.nvckpt").read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_every_flipped_bit_is_detected(name, record_property):
    """Any single flipped bit, anywhere in the file, is a FormatError: never success, never another exception."""
    sound = (DECODE / f"{name}.nvckpt").read_bytes()
    archive = bytearray(sound)
    for position in range(len(archive)):
        for bit in range(8):
            archive[position] ^= 1 << bit
            with pytest.raises(FormatError):
                restore(bytes(archive))
            archive[position] ^= 1 << bit
    record_property("flips", 8 * len(sound))


@pytest.mark.parametrize("name", SOUND)
def test_every_shortened_archive_is_detected(name, record_property):
    """An archive cut anywhere is a FormatError."""
    sound = (DECODE / f"{name}.nvckpt").read_bytes()
    for length in range(len(sound)):
        with pytest.raises(FormatError):
            restore(sound[:length])
    record_property("cuts", len(sound))


@pytest.mark.parametrize("name", SOUND)
def test_every_appended_tail_is_detected(name):
    """Nothing may follow the footer, not even zeros or a second archive."""
    sound = (DECODE / f"{name}.nvckpt").read_bytes()
    for tail in (b"\0", b"\n", bytes(16), bytes(4096), sound):
        with pytest.raises(FormatError):
            restore(sound + tail)
