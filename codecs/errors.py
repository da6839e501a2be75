"""Every way a codec can fail; each class owns its machine-readable code."""

from typing import ClassVar


class CodecError(Exception):
    """A codec cannot do what was asked; the message is a sentence for a person."""

    code: ClassVar[str] = "unsupported"


class CorruptChunkError(CodecError):
    """An encoded stream contradicts itself or the sizes recorded beside it."""

    code = "corrupt"


class UnknownCodecError(CodecError):
    """No codec or transform of this id is known to this version; a later one may know it."""

    code = "unsupported"


class UnknownNameError(CodecError):
    """A codec or device was asked for by a name that means nothing."""

    code = "usage"


class CodecUnavailableError(CodecError):
    """The codec exists, but not on this machine or device; the message names the remedy."""

    code = "gpu_unavailable"


class InvalidLevelError(CodecError):
    """The codec has no such level."""

    code = "usage"


class DeviceMemoryError(CodecError):
    """The device has too little free memory for a batch; a smaller one may fit."""

    code = "oom"


class DeviceMismatchError(CodecError):
    """What the device decoded is not what it was given to code."""

    code = "corrupt"
