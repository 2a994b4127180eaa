"""Named tuples handed on by reference: a context of many arrays is one word of a call, not hundreds.

Numba hands a tuple over as all the words of all its arrays (seven an array), which every one of some hundred inlined
functions would take apart and put together again: a third of the compiler's time. A `reference` is made once, by the
function that is not inlined; when all is inlined the optimiser takes its fields for the plain values they are.
"""

from __future__ import annotations

import hashlib
from typing import Any

from numba.core import cgutils, types
from numba.core.types.containers import BaseNamedTuple
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    models,
    register_model,
)


class Reference(types.Type):
    """To a named tuple; has its fields, those that are named tuples as references."""

    def __init__(self, to: BaseNamedTuple) -> None:
        self.to = to
        # Types are part of every function's name, and the full one would run to pages
        digest = hashlib.sha256(str(to).encode()).hexdigest()[:16]
        super().__init__(f"Reference({to.instance_class.__name__}, {digest})")


@register_model(Reference)
class _Pointer(models.PrimitiveModel):
    def __init__(self, manager: Any, reference: Reference) -> None:
        super().__init__(manager, reference, manager.lookup(reference.to).get_value_type().as_pointer())


@intrinsic
def reference(typing: Any, value: Any) -> Any:
    """A reference to a named tuple, for as long as the function runs that makes it."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return cgutils.alloca_once_value(builder, arguments[0])

    return Reference(value)(value), make


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    key = Reference

    def generic_resolve(self, of: Reference, name: str) -> Any:
        if name not in of.to.fields:
            return None
        field = of.to.types[of.to.fields.index(name)]
        return Reference(field) if isinstance(field, BaseNamedTuple) else field


@lower_getattr_generic(Reference)
def _field(context: Any, builder: Any, of: Reference, pointer: Any, name: str) -> Any:
    at = of.to.fields.index(name)
    place = cgutils.gep_inbounds(builder, pointer, 0, at)
    return place if isinstance(of.to.types[at], BaseNamedTuple) else builder.load(place)
