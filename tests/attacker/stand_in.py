"""A stand-in for a graphics card: tensors that say they are on another device, hold numbers all the same, and refuse
to meet the CPU's.

torch's meta device has no data, so that whatever looks at a number fails there. A tensor here says `meta` too, but is
computed with on the CPU, out of sight: so an attack can run to its end. What a card would not stand raises (a tensor of
the CPU among its own), and what it would have to be waited for is counted.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = "meta"
LOOKS = {"_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "unique_dim"}
"""What gives the program a number, or a tensor whose size depends on numbers."""
BETWEEN = {"_to_copy", "copy_", "_copy_from"}


class There(Tensor):
    """A tensor on the stand-in."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "There":
        about = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        made: There = Tensor._make_wrapper_subclass(cls, held.size(), device=DEVICE, **about)
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {}, Counter())


class StandIn(TorchDispatchMode):
    """Within this, the device `meta` is the stand-in; `found` counts what a card would have to be waited for."""

    def __init__(self, found: Counter[str] | None = None) -> None:
        super().__init__()
        self.found: Counter[str] = Counter() if found is None else found
        self._made = _Made()

    def __enter__(self) -> "StandIn":
        self._made.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._made.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {}, self.found)


class _Made(TorchFunctionMode):
    """What torch does without asking how a tensor is computed with: making one of a list, and a list of one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and _is_there(kwargs.get("device")):
            del kwargs["device"]
            return func(*args, **kwargs).to(DEVICE)
        if func is Tensor.tolist and isinstance(args[0], There):
            return args[0].cpu().tolist()
        return func(*args, **kwargs)


def _computed(func: Any, args: Any, kwargs: dict[str, Any], found: Counter[str]) -> Any:
    name, device = func.overloadpacket.__name__, kwargs.get("device")
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = any(isinstance(one, There) for one in tensors)
    if there and name in LOOKS:
        found[name] += 1
    if there and name in BETWEEN and device is not None and not _is_there(device):
        found["to the CPU"] += 1
    if there and name not in BETWEEN and any(not isinstance(one, There) and one.dim() for one in tensors):
        raise RuntimeError(f"{name}: a tensor of the CPU among those of the card")
    stays = there if device is None else _is_there(device)
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    plain_args, plain_kwargs = tree_map(_held, (args, kwargs))
    done = func(*plain_args, **plain_kwargs)
    if not stays:
        return done
    wrapped = tree_map(lambda one: There(one) if isinstance(one, Tensor) else one, done)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if there else wrapped


def _held(one: Any) -> Any:
    return one.held if isinstance(one, There) else one


def _is_there(device: Any) -> bool:
    return device is not None and torch.device(device).type == DEVICE
