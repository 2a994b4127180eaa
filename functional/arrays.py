"""Types of arrays in annotations: at run time nothing looks at them, and jaxtyping takes 60 ms to import."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import *  # noqa: F403
else:

    def __getattr__(name: str) -> type:
        return list
