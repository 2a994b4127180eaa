"""A CUDA source as PTX, by the `nvcc` of this machine if there is one."""

from __future__ import annotations

import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from functional.errors import InputError
from functional.keep.folder import cache_dir, write_atomic

OPTIONS = ("-ptx", "-lineinfo", "-arch=sm_75")  # with the source's lines in the PTX


def ptx_of(source: str) -> Path:
    """The path of the PTX, which is kept. Raises InputError without a compiler, with what to type where there is one,
    and with the compiler's first error for a source that it refuses."""
    if not Path(source).is_file():
        raise InputError(f"{source}: no such file")
    compiler = shutil.which("nvcc")
    if compiler is None:
        made = Path(source).with_suffix(".ptx").name
        raise InputError(
            f"{source}: there is no nvcc here to compile it; where there is, type `nvcc {' '.join(OPTIONS)} "
            f"{Path(source).name} -o {made}` and give {made}"
        )
    with TemporaryDirectory() as folder:
        ptx = Path(folder) / f"{Path(source).stem}.ptx"
        done = subprocess.run([compiler, *OPTIONS, source, "-o", str(ptx)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise InputError(f"{source}: nvcc refuses it: {_first_error(done.stderr + done.stdout)}")
        content = ptx.read_bytes()
    kept = cache_dir("ptx") / sha256(content).hexdigest()[:32] / ptx.name
    write_atomic(kept, lambda file: file.write(content))
    if not kept.is_file():
        raise InputError(f"{source}: its PTX cannot be written to {kept.parent}")
    return kept


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower() or "fatal" in line.lower()), " ".join(lines[:2]))
