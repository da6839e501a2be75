"""Every way a file can be wrong; each class owns its machine-readable code."""

from typing import ClassVar


class FormatError(RuntimeError):
    """A file cannot be used as asked; the message is a sentence for a person.

    A RuntimeError, since that is what callers of torch.load catch.
    """

    code: ClassVar[str] = "corrupt"


class MalformedCheckpointError(FormatError):
    """A source file breaks its own format; its bytes are kept, its tensors are not recognised."""

    code = "malformed"


class MemoryLimitError(MalformedCheckpointError):
    """The structure of a file or archive would take more memory than allowed."""

    code = "too_large"


class SourceReadError(OSError):
    """The system failed while an input was read; apart from OSError so that no output is blamed for it."""


class NotDurableError(OSError):
    """An output has its name and is whole, but the system failed to make the name durable."""


class CorruptArchiveError(FormatError):
    """An archive contradicts its checksums or the rules of FORMAT.md."""

    code = "corrupt"


class TruncatedArchiveError(CorruptArchiveError):
    """An archive ends too early, or something was appended to it."""

    code = "truncated"


class NotAnArchiveError(FormatError):
    """The file does not start with the archive magic."""

    code = "not_an_archive"


class UnsupportedArchiveError(FormatError):
    """The archive needs a newer reader: an unknown version or mandatory feature."""

    code = "unsupported"
