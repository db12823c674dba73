#!/usr/bin/env python3
"""Names dependencies that no code of their crate mentions. Exit status 1 if there are any.

A dependency counts as used where its name stands as a word in a Rust file of the crate. Generated code uses some that
no file mentions; they are listed in GENERATED.
"""

import pathlib
import re
import sys
import tomllib

# The clients that tonic generates from a .proto file.
GENERATED = {"prost", "tonic-prost"}
ROOT = pathlib.Path(__file__).resolve().parent.parent


def words(crate: pathlib.Path) -> set[str]:
    return set().union(*(re.findall(r"\w+", path.read_text()) for path in crate.rglob("*.rs")))


def main() -> int:
    unused = []
    taken = set()
    for manifest in sorted(ROOT.glob("crates/*/Cargo.toml")):
        crate = tomllib.loads(manifest.read_text())
        used = words(manifest.parent)
        for table in ("dependencies", "dev-dependencies", "build-dependencies"):
            for name in crate.get(table, {}):
                taken.add(name)
                if name not in GENERATED and name.replace("-", "_") not in used:
                    unused.append(f"{manifest.relative_to(ROOT)}: {name} ({table})")
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["dependencies"]
    unused += [f"Cargo.toml: {name} (workspace)" for name in sorted(workspace.keys() - taken)]
    print("\n".join(f"unused dependency: {line}" for line in unused), end="\n" if unused else "")
    return 1 if unused else 0


if __name__ == "__main__":
    sys.exit(main())
