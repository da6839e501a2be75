"""What can go wrong with an operation; each class owns its machine-readable code.

The codes that scripts may rely on are those of this module, `nvckpt.formats.errors` and
`nvckpt.codecs.errors`; README lists them.
"""

import errno
import os
from typing import ClassVar

from nvckpt.codecs.errors import CodecError
from nvckpt.formats.errors import FormatError


class OperationError(RuntimeError):
    """A command cannot be carried out; the message is a sentence for a person.

    A RuntimeError, since that is what callers of torch.save catch.
    """

    code: ClassVar[str] = "io"


class OutputExistsError(OperationError):
    """The output is there already and may not be replaced."""

    code = "exists"


class InvalidRequestError(OperationError):
    """The request contradicts itself, such as an output that is its own input."""

    code = "usage"


class SourceChangedError(OperationError):
    """The input was written to while it was read."""

    code = "source_changed"


class MalformedSourceError(OperationError):
    """With `strict`: the input is not a sound checkpoint."""

    code = "malformed"


class VerificationError(OperationError):
    """What was written does not decode to the input; nothing was kept."""

    code = "corrupt"


class OutputTooLargeError(OperationError):
    """An archive declares more bytes than the caller allows."""

    code = "too_large"


class NoSuchTensorError(OperationError):
    """A tensor was asked for by a name that none has, or that does not tell which is meant."""

    code = "not_found"


class UnusableTensorError(OperationError):
    """A tensor cannot be written as asked, or does not lie where the checkpoint says."""

    code = "unsupported"


class NotARegularFileError(OperationError):
    """A directory, link or device stands where a file is needed."""

    code = "not_a_file"


class SystemRefusalError(OperationError):
    """The system refused a step; `code` is that of its error."""

    def __init__(self, sentence: str, cause: OSError) -> None:
        super().__init__(f"{sentence}: {sentence_of(cause)}")
        self._code = code_of(cause)

    @property
    def code(self) -> str:  # type: ignore[override]
        """See the class."""
        return self._code


class WriteError(SystemRefusalError):
    """The output could not be written."""

    def __init__(self, output: str, cause: OSError) -> None:
        super().__init__(f"cannot write {output}", cause)


class DurabilityError(SystemRefusalError):
    """The output is written and whole, but may not survive a power cut."""

    def __init__(self, output: str, cause: OSError) -> None:
        super().__init__(f"{output} is written, but the system could not make sure that it stays", cause)


class RemovalError(SystemRefusalError):
    """The output is written and whole, but the input could not be removed."""

    def __init__(self, output: str, cause: OSError) -> None:
        super().__init__(f"{output} is written, but the input could not be removed", cause)


KnownError = OperationError | FormatError | CodecError | OSError | MemoryError
KNOWN_ERRORS = (OperationError, FormatError, CodecError, OSError, MemoryError)
"""What callers of the operations handle; anything else is a defect of nvckpt."""

_OS_CODES = {
    errno.ENOENT: ("not_found", "no such file or directory"),
    errno.EACCES: ("permission", "permission denied"),
    errno.EPERM: ("permission", "operation not permitted"),
    errno.EROFS: ("permission", "the file system is read-only"),
    errno.ENOSPC: ("no_space", "no space left on the device"),
    errno.EDQUOT: ("no_space", "the disk quota is used up"),
    errno.EFBIG: ("no_space", "the file would be larger than the system allows"),
    errno.EEXIST: ("exists", "the file exists already"),
    errno.EISDIR: ("not_a_file", "is a directory"),
    errno.ENAMETOOLONG: ("io", "the file name is too long"),
}


def code_of(error: KnownError) -> str:
    """Return the machine-readable code of an error."""
    if isinstance(error, OSError):
        return _OS_CODES.get(error.errno or 0, ("io", ""))[0]
    return "oom" if isinstance(error, MemoryError) else error.code


def sentence_of(error: KnownError) -> str:
    """Return the sentence for a person, without the file's name unless another file is meant."""
    if isinstance(error, OSError):
        known = _OS_CODES.get(error.errno or 0)
        return known[1] if known else (os.strerror(error.errno) if error.errno else str(error)).lower()
    return "not enough memory" if isinstance(error, MemoryError) else str(error)
