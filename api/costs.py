"""What compressing checkpoints saves: the formulas, from sizes, ratios and speeds to idle GPU hours and money.

Sizes are bytes, speeds bytes a second, times seconds. One checkpoint of S bytes at a storage speed w takes S / w. With
a codec that leaves S / r bytes at an encoding time e it takes max(e, S / r / w) where coding and writing overlap
(pipelined), and e + S / r / w where one follows the other (serial). Each checkpoint that the training waits for idles
every GPU that long.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nvckpt.errors import InvalidRequestError

HARDLY = 1.02
"""A ratio below this is not worth the trouble."""
_LEAST_GAIN = 0.01
"""Less than this share of the time saved is noise."""
_LEAST, _MOST = 1e-9, 1e18
"""Of anything in a scenario, so that all that follows from it is a number."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Where checkpoints go, how often, and what waits for them; checked when it is made.

    `storage` is the speed that all GPUs share, `copy` that of each GPU's link to the host. `encoders` devices code at
    the same time, each its share. With `sync` the GPUs wait until a checkpoint is written, else only until it has left
    them, unless the next one is due before that.
    """

    storage: float
    gpus: int = 8
    gpu_hour: float = 4.40
    every: float = 1800.0
    days: float = 30.0
    sync: bool = True
    copy: float = 50e9
    encoders: int = 1

    def __post_init__(self) -> None:
        """InvalidRequestError for a number that cannot be."""
        for name, value in (
            ("storage speed", self.storage),
            ("number of GPUs", self.gpus),
            ("time between checkpoints", self.every),
            ("number of days", self.days),
            ("copy speed", self.copy),
            ("number of encoders", self.encoders),
        ):
            if not value >= _LEAST:
                raise InvalidRequestError(f"the {name} must be above zero")
            if value > _MOST:
                raise InvalidRequestError(f"the {name} is too large to reckon with")
        if not 0 <= self.gpu_hour <= _MOST:
            raise InvalidRequestError(
                f"the price of a GPU hour must not be negative or boundless, and is {self.gpu_hour:g}"
            )
        if self.checkpoints < 1:
            raise InvalidRequestError("the time between checkpoints is longer than the days counted: nothing is saved")

    @property
    def checkpoints(self) -> int:
        """Return how many checkpoints are written."""
        return int(self.days * 86400 / self.every)


@dataclass(frozen=True, slots=True)
class Figures:
    """A codec as it was measured: by group the ratio and the bytes a second that one device encodes."""

    codec: str
    ratios: Mapping[str, float]
    rates: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A codec in a scenario, or none. `waiting` is what a checkpoint costs every GPU; hours, money, bytes are totals.

    The break-even speeds are those of a storage above which the codec costs time: where coding and writing overlap,
    and where they do not; None where it never pays.
    """

    codec: str
    bytes_out: float
    encode: float
    write: float
    pipelined: float
    serial: float
    waiting: float
    waiting_serial: float
    idle_hours: float
    money: float
    money_serial: float
    stored: float
    ratio: float = 1.0
    break_even_pipelined: float | None = None
    break_even_serial: float | None = None
    verdict: str = ""

    @property
    def worth(self) -> bool:
        """Tell whether the codec makes the GPUs wait less."""
        return self.verdict == WORTH


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything `nvckpt plan` answers."""

    scenario: Scenario
    sizes: Mapping[str, int]
    without: Outcome
    outcomes: tuple[Outcome, ...]
    figures: tuple[Figures, ...]
    recommendation: str
    source: str
    notes: tuple[str, ...] = field(default=())


WORTH = "worth it"


def evaluate(sizes: Mapping[str, int], figures: Sequence[Figures], scenario: Scenario) -> tuple[Outcome, list[Outcome]]:
    """Return the outcome without a codec, and one for each codec."""
    size = sum(sizes.values())
    without = _outcome("none", size, size, 0.0, scenario)
    outcomes = []
    for codec in figures:
        coded = sum(count / codec.ratios[group] for group, count in sizes.items())
        encode = sum(count / codec.rates[group] for group, count in sizes.items()) / scenario.encoders
        outcomes.append(_outcome(codec.codec, size, coded, encode, scenario, without))
    return without, outcomes


def _outcome(
    codec: str, size: int, coded: float, encode: float, scenario: Scenario, without: Outcome | None = None
) -> Outcome:
    write = coded / scenario.storage
    pipelined, serial = max(encode, write), encode + write
    waiting, waiting_serial = pipelined, serial
    if not scenario.sync:
        leave = coded / (scenario.copy * scenario.gpus)
        late = max(0.0, write - scenario.every)
        waiting, waiting_serial = max(encode, leave) + late, encode + leave + late
    hours = scenario.checkpoints * scenario.gpus / 3600
    pays = without is not None and coded < size and encode > 0
    return Outcome(
        codec,
        coded,
        encode,
        write,
        pipelined,
        serial,
        waiting,
        waiting_serial,
        hours * waiting,
        hours * waiting * scenario.gpu_hour,
        hours * waiting_serial * scenario.gpu_hour,
        coded * scenario.checkpoints,
        size / coded,
        size / encode if pays else None,
        (size - coded) / encode if pays else None,
        "" if without is None else _verdict(size / coded, waiting, encode, without),
    )


def _verdict(ratio: float, waiting: float, encode: float, without: Outcome) -> str:
    """Say whether the GPUs wait less, and if not, why."""
    if ratio < HARDLY:
        return "not worth it: hardly shrinks"
    if waiting <= (1 - _LEAST_GAIN) * without.waiting:
        return WORTH
    if encode >= without.waiting:
        return "not worth it: slower than " + ("the storage" if without.waiting == without.write else "the copy")
    return "not worth it: saves no time"


def recommend(without: Outcome, outcomes: Sequence[Outcome], scenario: Scenario) -> str:
    """Return one sentence: which codec, what it saves; or that it is not worth it, and why."""
    size = without.stored
    best = min((o for o in outcomes if o.worth), key=lambda o: (o.waiting, o.bytes_out), default=None)
    if best:
        return (
            f"Use {best.codec}: each checkpoint holds the GPUs up for {seconds(best.waiting)} instead of"
            f" {seconds(without.waiting)}, which saves {dollars(without.money - best.money)} and"
            f" {tebibytes(size - best.stored)} of writes in {scenario.days:g} days."
        )
    smallest = min(outcomes, key=lambda o: o.bytes_out)
    if smallest.ratio < HARDLY:
        return (
            f"Not worth it: this content hardly shrinks (at best by {smallest.ratio:.3f} times, with {smallest.codec})."
        )
    fastest = min(outcomes, key=lambda o: o.encode)
    slow = "the storage is" if scenario.sync else "the GPUs' own copies are"
    return (
        f"Not worth it for the time: {slow} faster than every codec measured (the fastest takes"
        f" {seconds(fastest.encode)} to encode; without one the GPUs wait {seconds(without.waiting)});"
        f" {smallest.codec} would only save {tebibytes(size - smallest.stored)} of writes in {scenario.days:g} days."
    )


def seconds(value: float) -> str:
    """Return a time for people: three digits, or whole seconds."""
    return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"


def dollars(value: float) -> str:
    """Return money for people."""
    return f"${value:,.0f}" if value >= 100 else f"${value:,.2f}"


def tebibytes(value: float) -> str:
    """Return bytes for people, in TiB, GiB or MiB."""
    for power, unit in ((40, "TiB"), (30, "GiB")):
        if value >= 1 << power:
            return f"{value / (1 << power):,.1f} {unit}"
    return f"{value / (1 << 20):,.1f} MiB"
