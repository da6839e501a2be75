"""A pickle, read without being executed.

The opcodes run on a machine that only builds placeholders: a `Global` is two strings and never an
import, a `Call` is remembered and never made. Nothing here hashes, compares or prints what the
pickle built, so no object graph, however deep or cyclic, can make the walk recurse or hang.
"""

import struct

from nvckpt.formats.allowance import OPCODE, Allowance
from nvckpt.formats.errors import MalformedCheckpointError
from nvckpt.formats.pickle_opcodes import TABLE
from nvckpt.formats.pickle_values import Machine, TruncatedPickleError

MAX_PICKLE_BYTES = 64 << 20
MAX_OPCODES = 5_000_000
_STOP = ord(".")
# The longest fixed argument of an opcode, and the opcode.
_LONGEST_ARGUMENT = 9


def walk(data: bytes, start: int = 0, memory: Allowance | None = None) -> tuple[object, int]:
    """The value of the pickle at `start`, and the offset of the first byte behind its STOP.

    `data` should hold no more than MAX_PICKLE_BYTES; the caller pays for it, and what is built is paid here. Raises
    MalformedCheckpointError where the bytes are no pickle or have more than MAX_OPCODES; its subclass
    TruncatedPickleError where they end too early, MemoryLimitError where building them would take too much.
    """
    memory = memory or Allowance()
    affordable = min(MAX_OPCODES, max(0, memory.left) // OPCODE)
    machine = Machine(data)
    table = TABLE
    position = start
    try:
        for number in range(affordable):
            opcode = data[position]
            if opcode == _STOP:
                memory.spend(number * OPCODE)
                return machine.stack.pop(), position + 1
            position = table[opcode](machine, position + 1)
    except (IndexError, struct.error) as error:
        if position > len(data) - _LONGEST_ARGUMENT:
            raise TruncatedPickleError("the pickle ends early") from error
        raise MalformedCheckpointError(f"the pickle is damaged at byte {position}") from error
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise MalformedCheckpointError(f"the pickle is damaged at byte {position}") from error
    if affordable < MAX_OPCODES:
        raise memory.exceeded()
    raise MalformedCheckpointError(f"the pickle has more than {MAX_OPCODES} opcodes")
