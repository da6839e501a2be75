"""Inputs that make the float encoder decide each thing it can decide; for the emulated and the GPU tests."""

import numpy as np

from nvckpt.codecs.float_spec import FloatSpec

WORDS = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}


@np.errstate(over="ignore")
def to_bytes(values, kind):
    if kind == "bf16":
        return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    return np.asarray(values).astype({"fp16": "<f2", "fp32": "<f4", "fp64": "<f8"}[kind]).tobytes()


def of(kind, values, *matrices, extra=b""):
    values = np.asarray(values)
    return to_bytes(values.reshape(-1), kind) + extra, FloatSpec(WORDS[kind], kind, matrices or ((values.size, 0),))


def scaled(rng, rows, cols, spread=3.0):
    """A matrix whose rows and columns differ in scale, as optimizer moments do."""
    return rng.standard_normal((rows, cols)) * np.exp(
        spread * rng.standard_normal((rows, 1)) + rng.standard_normal(cols)
    )


def cases():
    """(name, bytes, spec), each small."""
    rng = np.random.default_rng(20261130)
    normal = rng.standard_normal
    for kind, word in WORDS.items():
        yield f"{kind} empty", b"", FloatSpec(word, kind)
        yield f"{kind} one", *of(kind, [1.5])
        yield f"{kind} odd tail", *of(kind, normal(333) * 0.02, extra=b"abcdefg"[: word - 1])
        yield f"{kind} zeros only", *of(kind, np.zeros(1000))
        yield f"{kind} constant", *of(kind, np.full(5000, -0.75))
        bits = rng.integers(0, 256, 40000 * word, np.uint8).tobytes()
        yield f"{kind} random bits", bits, FloatSpec(word, kind, ((40000, 0),))
        yield f"{kind} rows and columns", *of(kind, scaled(rng, 96, 256), (96, 256))
        yield f"{kind} squares", *of(kind, scaled(rng, 64, 320) ** 2 * 1e-3, (64, 320))
        yield f"{kind} odd columns", *of(kind, scaled(rng, 61, 131), (61, 131))
        sparse = scaled(rng, 80, 256) * (rng.random((80, 256)) > 0.3)
        sparse[10:20] = 0
        yield f"{kind} sparse", *of(kind, sparse, (80, 256))
        few = normal(20000) * 0.02
        few[::400] = 0
        few[7::900] = 1e-30
        few[11::777] = -0.0
        yield f"{kind} few zeros", *of(kind, few)
        stack = np.stack([scaled(rng, 32, 64) * 10.0**-i for i in range(3)])
        yield f"{kind} stack", *of(kind, stack, *[(32, 64)] * 3)
        mixed = np.concatenate(
            [scaled(rng, 40, 72).reshape(-1), normal(1000), scaled(rng, 16, 40).reshape(-1), normal(13)]
        )
        yield f"{kind} mixed shapes", *of(kind, mixed, (40, 72), (1000, 0), (16, 40), (13, 0))
        if kind != "fp16":
            yield f"{kind} tiny", *of(kind, scaled(rng, 64, 128) * 1e-33, (64, 128))
            yield f"{kind} all sizes", *of(kind, np.exp(normal(9000) * 30))
    yield "fp32 of bf16", *of("fp32", (normal(40000).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32))
    late = (normal(60000).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).copy()
    late[-3] = np.nextafter(late[-3], np.float32(9))
    yield "fp32 of bf16 until the end", *of("fp32", late)
    signs = np.abs(normal(50000))
    signs[30001] = -1
    yield "bf16 one sign", *of("bf16", signs)
    yield "fp32 one sign and zeros", *of("fp32", np.where(rng.random(50000) > 0.5, signs, 0))
    nans = np.frombuffer(
        np.array([0x7FC1, 0xFF80, 0x7F80, 0x0001, 0x8000, 0x0000, 0x3F80], "<u2").tobytes() * 700, "<u2"
    )
    yield "bf16 specials", nans.tobytes(), FloatSpec(2, "bf16", ((nans.size, 0),))
    for word in (1, 2, 4, 8):
        ints = rng.integers(0, 1000, 35000 // word).astype(f"<u{word}").tobytes() + b"xyz"[: word // 3]
        yield f"integers of {word}", ints, FloatSpec(word, "bytes")
    yield "bytes, two blocks", (normal(140000) * 20).astype(np.int8).tobytes(), FloatSpec(1, "bytes")
    yield "bf16 two blocks", *of("bf16", normal(140000) * 0.02, (140000 // 500, 500))
    burst = normal(70000) * 0.02
    burst[40000:40200] *= 1e30
    yield "bf16 burst", *of("bf16", burst)
