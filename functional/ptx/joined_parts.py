"""One PTX text of several that were compiled apart (`nvcc -rdc=true`, `cuLink*`), as nvlink joins machine code.

What one part declares `.extern`, another defines. What has no linkage is its part's own, and gets another name where a
second part has one like it. Of CUDA's own library for kernels that launch kernels only what is reached is taken."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from functional.errors import InputError, refuse
from functional.ptx.parser import next_item

_HEAD = re.compile(r"\.version\s+(?P<version>\S+)|\.target\s+(?P<target>[^\n]+)|\.address_size\s+(?P<address_size>\d+)")
_SKIPPED = re.compile(r"//[^\n]*|/\*[\s\S]*?\*/|\.file[ \t][^\n]*")
_WORDS = re.compile(r'//[^\n]*|/\*[\s\S]*?\*/|"[^"\n]*"|[A-Za-z_$%][\w$]*')
_FILES = re.compile(r"(?m)(^\s*\.(?:file|loc)\s+|\binlined_at\s+)(\d+)")
_FILE_LINE = re.compile(r"(?m)^\s*\.file\s+\d+\s+[^\n]*")
_LINKAGE = re.compile(r"\s*\.(extern|visible|weak|common)\b")
_ATTRIBUTES = re.compile(r"\.attribute\s*\([^)]*\)")
_FUNCTION = re.compile(r"\.(?:entry|func)\b\s*(?:\((?:[^()]|\([^)]*\))*\)\s*)?([A-Za-z_$%][\w$]*)")
_VARIABLE = re.compile(r"\.(?:align\s+\d+|\w+)|([A-Za-z_$%][\w$]*)")
_EXTERN, _LOCAL, _WEAK = "extern", "", "weak"
LIBRARY_CALLS = ("__cudaCDP2LaunchDeviceV2", "cudaLaunchDeviceV2")  # what CUDA's device run time defines


@dataclass(frozen=True)
class Item:
    """A declaration at the top of a text. `name`: "" for one that names nothing; `body`: where the body of a function
    begins in the text; 0 for all else."""

    text: str
    name: str
    linkage: str
    body: int = 0

    @property
    def is_function(self) -> bool:
        """Is it a function or kernel, with a body or without?"""
        return self.body > 0 or _FUNCTION.search(_plain(self.text)) is not None

    @property
    def defines(self) -> bool:
        """Is there nothing left to define? A function without a body is only declared."""
        return self.linkage != _EXTERN and bool(self.name) and (self.body > 0 or not self.is_function)

    def words(self) -> set[str]:
        """All names in its text."""
        return {match[0] for match in _WORDS.finditer(self.text)}


@dataclass(frozen=True)
class _Part:
    head: dict[str, str]
    items: tuple[Item, ...]

    @property
    def is_library(self) -> bool:
        return any(item.defines and item.name in LIBRARY_CALLS for item in self.items)

    def names(self, wanted: Callable[[Item], bool]) -> set[str]:
        return {item.name for item in self.items if item.defines and wanted(item)}


def joined_parts(texts: Sequence[str]) -> str:
    """The texts as one. Raises InputError for a symbol that two define, and for addresses of two sizes."""
    if len(texts) == 1:
        return texts[0]
    texts = list(_own_files(texts))
    parts = [_Part(_head_of(text), tuple(_items(text))) for text in texts]
    parts = _own_names(parts)
    needed = [item for part in parts if not part.is_library for item in part.items]
    needed += _reached([item for part in parts if part.is_library for item in part.items], needed)
    files = [line for text in texts for line in _FILE_LINE.findall(text)]
    return _text([_common_head(parts), *files], _once(needed))


def _plain(text: str) -> str:
    return _ATTRIBUTES.sub("", _SKIPPED.sub("", text))


def _head_of(text: str) -> dict[str, str]:
    matches = reversed(list(_HEAD.finditer(text[:4096])))  # of several the first counts
    return {match.lastgroup or "": match[match.lastgroup or 0].strip() for match in matches}


def _items(text: str) -> Iterator[Item]:
    at = max((match.end() for match in _HEAD.finditer(text[:4096])), default=0)
    while (found := next_item(text, at)) is not None:
        body, at_end = found
        item = text[at:at_end]
        at, plain = at_end, _plain(item[: body - at] if body else item)
        if ".section" in plain or ".pragma" in plain:
            continue
        linkage = _LINKAGE.match(plain)
        function = _FUNCTION.search(plain)
        named = function or next((match for match in _VARIABLE.finditer(plain) if match[1]), None)
        name = named[1] if named else ""  # of a variable the first word that is no directive
        starts = body - (at_end - len(item)) if body and function else 0
        yield Item(item, name, linkage[1] if linkage else _LOCAL, starts)


def _own_files(texts: Sequence[str]) -> Iterator[str]:
    """The texts with source files numbered through."""
    before = 0
    for text in texts:
        numbers = [int(match[2]) for match in _FILES.finditer(text)]
        yield _FILES.sub(lambda match, n=before: f"{match[1]}{int(match[2]) + n}", text) if before else text  # type: ignore[misc]
        before += max(numbers, default=0)


def _own_names(parts: list[_Part]) -> list[_Part]:
    """With other names for what has no linkage and is called as something in a part before, or as what one defines for
    all. Raises InputError for two kernels of one name: hosts ask for these by name."""
    public = set().union(*(part.names(lambda item: item.linkage != _LOCAL) for part in parts))
    taken, renamed = set(public), list[_Part]()
    for number, part in enumerate(parts):
        own = part.names(lambda item: item.linkage == _LOCAL)
        clashes = {name: f"{name}$part{number + 1}" for name in own & taken}
        for item in part.items:
            if item.name in clashes and ".entry" in item.text[: item.body]:
                raise InputError(f"two parts of the program have a kernel '{item.name}'")
        renamed.append(replace(part, items=tuple(_renamed(item, clashes) for item in part.items)))
        taken |= own
    return renamed


def _renamed(item: Item, names: dict[str, str]) -> Item:
    if not names:
        return item

    def renamed(text: str) -> str:
        return _WORDS.sub(lambda match: names.get(match[0], match[0]), text)

    front, rest = item.text[: item.body], item.text[item.body :]
    new_front = renamed(front)
    return Item(new_front + renamed(rest), names.get(item.name, item.name), item.linkage, len(new_front))


def _reached(library: list[Item], roots: list[Item]) -> list[Item]:
    """What of a library the roots name, and what that names in turn; in the library's order."""
    by_name: dict[str, list[Item]] = {}
    for item in library:
        by_name.setdefault(item.name, []).append(item)
    waiting, seen = set().union(*(item.words() for item in roots)) & by_name.keys(), set[str]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        waiting |= set().union(*(item.words() for item in by_name[name])) & by_name.keys() - seen
    return [item for item in library if item.name in seen]


def _once(items: list[Item]) -> list[Item]:
    """Each name defined once, or declared once where nothing defines it. Raises InputError for two definitions of
    which neither is weak."""
    found: dict[str, Item] = {}
    for item in items:
        known = found.get(item.name)
        if known is None or (item.defines and (not known.defines or known.linkage == _WEAK != item.linkage)):
            found[item.name] = item
        elif known.defines and item.defines and _WEAK not in (known.linkage, item.linkage):
            raise InputError(f"two parts of the program define '{item.name}'")
    return [found[name] for name in found]


def _common_head(parts: list[_Part]) -> str:
    """The newest version and target of those that are no library."""
    sizes = {part.head.get("address_size", "64") for part in parts}
    refuse(len(sizes) > 1, "parts of the program have addresses of different sizes")
    own = [part for part in parts if not part.is_library] or parts
    version = max((part.head["version"] for part in parts), key=lambda v: [int(n) for n in v.split(".")])
    target = max((part.head["target"] for part in own), key=_generation)
    return f".version {version}\n.target {target}\n.address_size {sizes.pop()}"


def _generation(target: str) -> tuple[int, str]:
    """`sm_90a` is newer than `sm_90`."""
    number = re.search(r"\d+", target)
    return int(number[0]) if number else 0, target


def _text(head: list[str], items: list[Item]) -> str:
    """Functions are declared first, since any part may name them, then variables, those without a value in front."""
    functions = [item for item in items if item.is_function]
    variables = sorted((item for item in items if not item.is_function), key=lambda item: "=" in item.text)
    declared = [_declaration(item) for item in functions if item.body]
    parts = [item.text for item in functions if not item.body] + declared
    parts += [item.text for item in variables] + [item.text for item in functions if item.body]
    return "\n".join([*head, *(_FILE_LINE.sub("", part) for part in parts)]) + "\n"


def _declaration(function: Item) -> str:
    """Without a body; a kernel also without what is said of how it is launched."""
    front = _SKIPPED.sub("", function.text[: function.body])
    return (front[: front.rfind(")") + 1 or None] if ".entry" in front else front).strip() + ";"
