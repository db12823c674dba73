#!/usr/bin/env python3
"""Names circles of imports: files of one crate that all need one another. Exit status 1 if one has over LIMIT files.

An arrow goes from a file to the file that defines the name it imports with `use crate::`, `super::` or `self::`, or
names by such a path. A name that a file only passes on (`pub use`) leads to the file that defines it, so a parent that
declares and re-exports adds no arrow. Tests are not counted.
"""

import pathlib
import re
import sys

LIMIT = 3
ROOT = pathlib.Path(__file__).resolve().parent.parent
STRING_OR_COMMENT = re.compile(r"""//[^\n]*|/\*.*?\*/|\br(#*)".*?"\1|"(?:\\.|[^"\\])*"|'(?:\\[^']+|[^'\\])'""", re.S)
PATH = re.compile(r"\b(?:crate|super|self)(?:\s*::\s*\w+)+")


def without_tests(text: str) -> str:
    """The code alone: no comments, no strings, no modules of tests."""
    text = re.sub(STRING_OR_COMMENT, "", text)
    while found := re.search(r"#\[cfg\((?:all\()?test\b.*?\]\s*(?:#\[.*?\]\s*)*[^;{]*([;{])", text, re.S):
        end, depth = found.end(), found[1] == "{"
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        text = text[: found.start()] + text[end:]
    return text


def leaves(tree: str) -> list[tuple[list[str], str]]:
    """The paths of one `use` and the names that they get: `a::{b, c as d}` is a::b as b, a::c as d."""
    parts, depth, last = [], 0, 0
    for at, char in enumerate(tree):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(tree[last:at])
            last = at + 1
    found = []
    for part in filter(None, (part.strip() for part in [*parts, tree[last:]])):
        head, brace, rest = part.partition("{")
        path = [step.strip() for step in head.split("::") if step.strip()]
        if brace:
            found += [(path + below, name) for below, name in leaves(rest[: rest.rindex("}")])]
        else:
            last_step, _, name = path[-1].partition(" as ")
            path[-1] = last_step.strip()
            if path[-1] == "self":
                path.pop()
            found.append((path, name.strip() or (path[-1] if path else "")))
    return found


class Crate:
    """The modules of a crate, by path: what each defines, passes on and uses."""

    def __init__(self, source: pathlib.Path):
        self.files, self.uses, self.gives, self.names = {}, {}, {}, {}
        for path in sorted(source.rglob("*.rs")):
            steps = path.relative_to(source).with_suffix("").parts
            if "bin" in steps[:1] or any("test" in step for step in steps):
                continue
            module = tuple(steps[:-1] if steps[-1] in ("mod", "lib", "main") else steps)
            # A crate with both: its program imports the library by name, not by `crate`.
            if module == () and steps[-1] == "main" and () in self.files:
                continue
            self.add(module, path)

    def add(self, module: tuple[str, ...], path: pathlib.Path) -> None:
        text = without_tests(path.read_text())
        self.files[module], self.uses[module], self.gives[module] = path, [], {}
        for public, tree in re.findall(r"\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", text):
            for steps, name in leaves(tree):
                if public:
                    self.gives[module][name] = steps
                else:
                    self.uses[module].append(steps)
        text = re.sub(r"\b(?:use|mod)\s+[^;{]+(?:\{[^;]*)?;|\bpub\(in [^)]*\)", "", text)
        # A name that is passed on and used here too.
        self.uses[module] += [to for name, to in self.gives[module].items() if re.search(rf"\b{name}\b", text)]
        self.uses[module] += [re.split(r"\s*::\s*", found) for found in PATH.findall(text)]
        self.names[module] = text

    def target(self, module: tuple[str, ...], steps: list[str], depth: int = 0) -> tuple[str, ...] | None:
        """The module that defines what the path leads to; none where that is outside the crate."""
        at, rest = module, list(steps)
        if rest[0] == "crate":
            at, rest = (), rest[1:]
        elif rest[0] in ("super", "self"):
            while rest and rest[0] in ("super", "self"):
                at, rest = (at[:-1] if rest[0] == "super" else at), rest[1:]
        elif (*at, rest[0]) not in self.files:
            return None
        while rest and (*at, rest[0]) in self.files:
            at, rest = (*at, rest[0]), rest[1:]
        if rest and depth < 9 and (given := self.gives.get(at, {}).get(rest[0])):
            return self.target(at, given + rest[1:], depth + 1)
        return at if rest else None

    def arrows(self) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
        found = {module: set() for module in self.files}
        for module, uses in self.uses.items():
            for steps in uses:
                target = self.target(module, steps)
                # A path of which only the module is named (`use super::parse;`) means that module's functions.
                if target is None:
                    target = self.module(module, steps)
                if target in found and target != module:
                    found[module].add(target)
            for child in self.files:
                # A child that the file declares is in scope without an import.
                if child[:-1] == module and child and re.search(rf"(?<![\w:]){child[-1]}::\w", self.names[module]):
                    found[module].add(child)
        return found

    def module(self, at: tuple[str, ...], steps: list[str]) -> tuple[str, ...] | None:
        rest = list(steps)
        if rest[0] == "crate":
            at, rest = (), rest[1:]
        while rest and rest[0] in ("super", "self"):
            at, rest = (at[:-1] if rest[0] == "super" else at), rest[1:]
        path = (*at, *rest)
        return path if rest and path in self.files else None


def circles(arrows: dict) -> list[list]:
    """Strongly connected components of more than one file."""

    def reach(start):
        seen, todo = set(), [start]
        while todo:
            for other in arrows[todo.pop()] - seen:
                seen.add(other)
                todo.append(other)
        return seen

    reached = {module: reach(module) for module in arrows}
    groups = {frozenset(other for other in reached[module] if module in reached[other]) for module in arrows}
    return sorted((sorted(group) for group in groups if len(group) > 1), key=len, reverse=True)


def main() -> int:
    shown = 0
    for source in sorted(ROOT.glob("crates/*/src")):
        crate = Crate(source)
        arrows = crate.arrows()
        for circle in circles(arrows):
            if len(circle) <= LIMIT:
                continue
            shown += 1
            print(f"{len(circle)} files import one another:")
            for module in circle:
                near = ", ".join("::".join(other) or "lib" for other in sorted(arrows[module] & set(circle)))
                print(f"  {crate.files[module].relative_to(ROOT)} -> {near}")
    return 1 if shown else 0


if __name__ == "__main__":
    sys.exit(main())
