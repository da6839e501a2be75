"""Element types: the ids written in archives, and how safetensors and torch spell them.

The ids stand in FORMAT.md and are never reused; a test compares the two tables.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["float", "complex", "int", "bool", "packed", "bytes"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type; `bits` is the size of an element, `word` the bytes of its plane-split unit."""

    id: int
    name: str
    bits: int
    kind: Kind
    torch_name: str | None = None

    @property
    def word(self) -> int:
        """Bytes of the unit that a transform splits: half an element for complex types, at least 1."""
        size = max(1, self.bits // 8)
        return size // 2 if self.kind == "complex" else size


_TABLE = (
    DType(0, "UNKNOWN", 8, "bytes"),
    DType(1, "F64", 64, "float", "float64"),
    DType(2, "F32", 32, "float", "float32"),
    DType(3, "F16", 16, "float", "float16"),
    DType(4, "BF16", 16, "float", "bfloat16"),
    DType(5, "F8_E4M3", 8, "float", "float8_e4m3fn"),
    DType(6, "F8_E5M2", 8, "float", "float8_e5m2"),
    DType(7, "F8_E4M3FNUZ", 8, "float", "float8_e4m3fnuz"),
    DType(8, "F8_E5M2FNUZ", 8, "float", "float8_e5m2fnuz"),
    DType(9, "F8_E8M0", 8, "float", "float8_e8m0fnu"),
    DType(10, "F6_E2M3", 6, "packed"),
    DType(11, "F6_E3M2", 6, "packed"),
    DType(12, "F4", 4, "packed", "float4_e2m1fn_x2"),
    DType(16, "C32", 32, "complex", "complex32"),
    DType(17, "C64", 64, "complex", "complex64"),
    DType(18, "C128", 128, "complex", "complex128"),
    DType(24, "I64", 64, "int", "int64"),
    DType(25, "I32", 32, "int", "int32"),
    DType(26, "I16", 16, "int", "int16"),
    DType(27, "I8", 8, "int", "int8"),
    DType(28, "U64", 64, "int", "uint64"),
    DType(29, "U32", 32, "int", "uint32"),
    DType(30, "U16", 16, "int", "uint16"),
    DType(31, "U8", 8, "int", "uint8"),
    DType(32, "BOOL", 8, "bool", "bool"),
    DType(40, "QINT8", 8, "int", "qint8"),
    DType(41, "QUINT8", 8, "int", "quint8"),
    DType(42, "QINT32", 32, "int", "qint32"),
    DType(43, "QUINT4X2", 8, "packed", "quint4x2"),
    DType(44, "QUINT2X4", 8, "packed", "quint2x4"),
)

BY_ID = {t.id: t for t in _TABLE}
BY_NAME = {t.name: t for t in _TABLE}
BY_TORCH_NAME = {t.torch_name: t for t in _TABLE if t.torch_name}
UNKNOWN = BY_ID[0]
