"""Where in an object tree a tensor stands: the path that names it, and what the structure tells of it."""

from collections.abc import Callable, Collection

from nvckpt.formats import groups
from nvckpt.formats.pickle_values import PersistentId, entries_of

_MAX_DEPTH = 64
_MAX_NAME_LENGTH = 1024
# The tables inside a pickled torch.nn.Module and the tensor inside a DTensor: no user knows them by name.
_UNNAMED = frozenset({"_modules", "_parameters", "_buffers", "_local_tensor"})
_MODEL_KEYS = (
    "state_dict model module params net generator discriminator current_model_state unet vae "
    "text_encoder encoder decoder backbone network policy model_state_dict model_state weights"
)
# What trainers keep beside the model: tensors in there are settings and counters.
_OTHER_KEYS = (
    "callbacks loops lr_schedulers lr_scheduler scheduler opt_param_scheduler hyper_parameters args "
    "scaler grad_scaler loss_scaler sampler dataloader rerun_state_machine"
)
_ROLE_OF_KEY = dict.fromkeys(_MODEL_KEYS.split(), groups.WEIGHTS) | dict.fromkeys(_OTHER_KEYS.split(), groups.OTHER)
_PLAIN = frozenset({str, bytes, int, float, bool, type(None), PersistentId})
# Lightning's weight averaging: `state_dict` is the average, the live weights have a key of their own.
_AVERAGED = "averaged"


class Place:
    """A node of the path from the root; children point to their parents, so a path is free until named."""

    __slots__ = ("component", "parent", "role")

    def __init__(self, parent: "Place | None", component: str, role: str) -> None:
        self.parent = parent
        # Cut here, once: a name is made for every tensor below, and a hostile key may be as long as its pickle.
        self.component = component[-_MAX_NAME_LENGTH:]
        self.role = role

    def child(self, component: str) -> "Place":
        """The place under a key; a role goes down to everything below it."""
        role = self.role
        if role in {groups.UNKNOWN_ROLE, _AVERAGED}:
            if role == _AVERAGED and component == "state_dict":
                return Place(self, component, groups.EMA)
            role = groups.WEIGHTS if _is_numbered_model(component) else _ROLE_OF_KEY.get(component, "")
        elif component == "_buffers" and role == groups.WEIGHTS:
            role = groups.BUFFERS
        return Place(self, component, role)

    def around(self, container: object, is_tensor: Callable[[object], bool]) -> "Place":
        """The same place, with the role that the shape of the container in it tells."""
        if self.role not in {groups.UNKNOWN_ROLE, groups.WEIGHTS}:
            return self
        found = _role_of(container, is_tensor)
        if found in {groups.UNKNOWN_ROLE, self.role}:
            return self
        return Place(self.parent, self.component, found)

    def name(self) -> str:
        """The components joined by dots, cut to a sane length from the front."""
        parts: list[str] = []
        place: Place | None = self
        length = 0
        while place is not None and len(parts) < _MAX_DEPTH and length < _MAX_NAME_LENGTH:
            if place.component and place.component not in _UNNAMED:
                parts.append(place.component)
                length += len(place.component) + 1
            place = place.parent
        parts.reverse()
        return ".".join(parts)[-_MAX_NAME_LENGTH:]


def _is_numbered_model(component: str) -> bool:
    """Megatron numbers the pieces of a virtual pipeline: model0, model1."""
    return component[:5] == "model" and component[5:].isdecimal()


def _role_of(container: object, is_tensor: Callable[[object], bool]) -> str:
    entries = entries_of(container)
    if entries is None:
        is_bare = isinstance(container, list | tuple) and _is_bare(container, is_tensor)
        return groups.WEIGHTS if is_bare else groups.UNKNOWN_ROLE
    if entries_of(entries.get("state")) is not None and isinstance(entries.get("param_groups"), list):
        return groups.OPTIMIZER_ROLE
    if "exp_avg" in entries and "param" in entries:
        return groups.OPTIMIZER_ROLE
    if "n_averaged" in entries:
        return groups.EMA
    if "current_model_state" in entries and "state_dict" in entries:
        return _AVERAGED
    is_model = "_parameters" in entries or _is_bare(entries.values(), is_tensor)
    return groups.WEIGHTS if is_model else groups.UNKNOWN_ROLE


def _is_bare(values: Collection[object], is_tensor: Callable[[object], bool]) -> bool:
    """Whether there are tensors and beside them only plain values, as in a state dict."""
    found = False
    for value in values:
        if is_tensor(value):
            found = True
        elif type(value) not in _PLAIN:
            return False
    return found
