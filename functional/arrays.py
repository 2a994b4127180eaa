"""Types of arrays in annotations: at run time nothing looks at them, and jaxtyping takes 60 ms to import."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64, Int, Int8, Int32, Int64, Shaped, UInt8, UInt32, UInt64
else:
    Bool = Float = Float64 = Int = Int8 = Int32 = Int64 = Shaped = UInt8 = UInt32 = UInt64 = list

__all__ = ["Bool", "Float", "Float64", "Int", "Int8", "Int32", "Int64", "Shaped", "UInt8", "UInt32", "UInt64"]
