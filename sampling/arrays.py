"""Types of arrays in annotations; at run time nothing looks at them, and jaxtyping takes long to import."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64, Int64, Shaped
else:
    Bool = Float64 = Int64 = Shaped = list

__all__ = ["Bool", "Float64", "Int64", "Shaped"]
