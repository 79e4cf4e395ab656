"""Whether modules and their tensors are still what something was made from, and whether anybody looks on.

Asked before each token, so everything here is a comparison of short lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import is_
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TABLES = (*_HOOKS, "_modules", "_parameters", "_buffers")
"""What a module keeps in dictionaries of its own, any of which may be put in another's place."""
_PLAIN_TENSORS = (Tensor, nn.Parameter)


class Unchanged:
    """Modules and tensors that were looked up, to be compared with what is there later.

    `forwards`: the modules' classes that are known, with the forward functions that they had when that was learnt.
    """

    def __init__(self, forwards: Mapping[type[nn.Module], Callable[..., Any]]) -> None:
        self.forwards = forwards
        self._originals = list(forwards.values())
        self._modules: list[nn.Module] = []
        self._tables: list[Mapping[str, Any]] = []
        self._names: list[str] = []
        self._found: list[Any] = []
        self._tensors: list[Tensor] = []
        self._classes: list[type] = []
        self._dictionaries: list[dict[str, Any]] = []
        self._hooks: list[Mapping[int, Any]] = []
        self._dropouts: list[nn.Module] = []
        self._state: list[tuple[Any, ...]] = []

    def root(self, module: nn.Module) -> nn.Module | None:
        """The module, noted; None where its class is not a known one."""
        kind = type(module)
        if kind not in self.forwards:
            return None
        self._modules.append(module)
        self._classes.append(kind)
        self._dictionaries.append(module.__dict__)
        for name in _TABLES:
            self._look_up(module.__dict__, name)
        self._hooks += [module.__dict__[name] for name in _HOOKS]
        if kind is nn.Dropout:
            self._dropouts.append(module)
        return module

    def child(self, module: nn.Module, name: str) -> nn.Module | None:
        """The module's child of this name, noted; None where there is none, or its class is not a known one."""
        made = self._look_up(module._modules if name in module._modules else module.__dict__, name)
        return None if made is None else self.root(made)

    def values(self, module: nn.Module, *names: str) -> None:
        """Note attributes of a module that are neither modules nor tensors; they are replaced, never changed."""
        for name in names:
            self._look_up(module.__dict__, name)

    def tensor(self, module: nn.Module, name: str) -> Tensor | None:
        """The module's own parameter or buffer of this name, noted; None where there is none, which is noted too."""
        table = module._buffers if name in module._buffers else module._parameters
        found = self._look_up(table, name)
        if found is not None:
            self._tensors.append(found)
            self._state.append(_state_of(found))
        return found

    def holds(self) -> bool:
        """Whether every look-up would find the same, with the same memory, shapes, strides and dtypes."""
        now = [table.get(name) for table, name in zip(self._tables, self._names, strict=True)]
        return (
            all(map(is_, now, self._found))
            and all(map(is_, [module.__dict__ for module in self._modules], self._dictionaries))
            and [module.__class__ for module in self._modules] == self._classes
            and [_state_of(tensor) for tensor in self._tensors] == self._state
        )

    def observed(self) -> bool:
        """Whether calls of these modules would do more or else than their classes' forward: hooks, replaced or
        compiled calls, dropout.
        """
        return (
            any(self._hooks)
            or any("forward" in table or "_compiled_call_impl" in table for table in self._dictionaries)
            or any(module.training for module in self._dropouts)
            or torch_module._has_any_global_hook()
            or [kind.forward for kind in self.forwards] != self._originals
        )

    def _look_up(self, table: Mapping[str, Any], name: str) -> Any:
        found = table.get(name)
        self._tables.append(table)
        self._names.append(name)
        self._found.append(found)
        return found


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has memory of its own on a CPU, which is what it says."""
    return type(tensor) in _PLAIN_TENSORS and tensor.is_cpu and not tensor.is_neg()


def _state_of(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.__class__, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
