"""Small Accel-Sim traces as text, for the tests."""

from __future__ import annotations

HEADER = {
    "kernel name": "_Z1kPf", "kernel id": "1", "grid dim": "(1,1,1)", "block dim": "(32,1,1)", "shmem": "0",
    "nregs": "16", "binary version": "70", "cuda stream id": "0", "shmem base_addr": "0x00007f6a00000000",
    "local mem base_addr": "0x00007f6a01000000", "nvbit version": "1.5.5", "accelsim tracer version": "5",
    "enable lineinfo": "0",
}  # fmt: skip
SHARED, LOCAL = 0x7F6A00000000, 0x7F6A01000000
EXIT = "00f0 ffffffff 0 EXIT 0 0 0 "


def kernel(*warps, blocks=None, extra=(), **header):
    """Text of a .traceg: `warps` are lists of lines; `blocks` maps "x,y,z" to such lists and replaces `warps`."""
    values = HEADER | {key.replace("_", " "): str(value) for key, value in header.items()}
    text = "".join(f"-{key} = {value}\n" for key, value in values.items())
    text += "\n#traces format = [line_num] PC mask dest_num [reg_dests] opcode ...\n\n"
    for where, contents in (blocks or {"0,0,0": warps}).items():
        text += f"#BEGIN_TB\n\nthread block = {where}\n" + "".join(f"{line}\n" for line in extra)
        for number, lines in enumerate(contents):
            text += f"\nwarp = {number}\ninsts = {len(lines)}\n" + "".join(f"{line}\n" for line in lines)
        text += "\n#END_TB\n\n"
    return text


def directory(folder, *kernels, names=None, listed="kernelslist.g", commands=("MemcpyHtoD,0x00007fb0fc400000,1024",)):
    """A trace directory of kernels given as text."""
    names = names or [f"kernel-{n + 1}.traceg" for n in range(len(kernels))]
    for name, text in zip(names, kernels, strict=True):
        (folder / name).write_text(text)
    (folder / listed).write_text("\n".join([*commands, *names]) + "\n")
    return folder
