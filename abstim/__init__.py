"""How long a kernel takes on a GPU that need not exist.

import abstim
abstim.run("hotspot", gpu="gtx480").totals["cycles"]
kernel = abstim.load("k.ptx").kernel("k")"""

from typing import Any

__version__ = "0.1.0"
# Where each public name lives; loaded on first use, because a start of the command should not pay for all of them.
_HOME = {
    "run": "abstim.models",
    "run_many": "abstim.models",
    "counterfactual": "abstim.study.counterfactual",
    "advise": "abstim.study.counterfactual",
    "open_session": "abstim.session.session",
    "load": "abstim.targets.loading",
    "capture": "abstim.application.run_application",
    "kernel_time": "abstim.gradient.kernel_time",
    "load_gpu": "abstim.gpu.config",
    "Gpu": "abstim.gpu.config",
    "RunResult": "abstim.session.result",
    "LaunchResult": "abstim.session.result",
    "InputError": "functional.errors",
    "logged": "abstim.progress",
}
__all__ = sorted(_HOME)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'abstim' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
