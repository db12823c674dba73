#!/usr/bin/env python3
"""Known advisories about the crates that Cargo.lock names: advisories.py DATABASE [LOCK]

DATABASE is a checkout of the RustSec advisory database (its folder `crates`). Prints those that apply; status 1 if there are
any. For machines without cargo-audit, or without a network.
"""

import glob
import os
import re
import sys
import tomllib


def version(text):
    core, _, pre = text.split("+")[0].partition("-")
    numbers = [int(part) for part in core.split(".")]
    return tuple(numbers + [0] * (3 - len(numbers))), (pre == "", pre)


def fits(requirement, have):
    """As Cargo reads a requirement; several, separated by commas, must all hold."""
    for part in requirement.split(","):
        operator, wanted = re.match(r"(>=|<=|>|<|=|\^|~)?\s*(.+)", part.strip()).groups()
        a, b = version(have), version(wanted)
        if operator in (None, "^"):
            first = next((at for at, number in enumerate(b[0]) if number), 2)
            good = a >= b and a[0][: first + 1] == b[0][: first + 1]
        elif operator == "~":
            good = a >= b and a[0][:2] == b[0][:2]
        else:
            good = {">=": a >= b, "<=": a <= b, ">": a > b, "<": a < b, "=": a == b}[operator]
        if not good:
            return False
    return True


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    here = os.path.dirname(os.path.abspath(__file__))
    lock = sys.argv[2] if len(sys.argv) == 3 else os.path.join(here, "../Cargo.lock")
    versions = {}
    with open(lock, "rb") as file:
        for package in tomllib.load(file)["package"]:
            versions.setdefault(package["name"], set()).add(package["version"])
    looked_at = apply = 0
    if not os.path.isdir(os.path.join(sys.argv[1], "crates")):
        print(f"{sys.argv[1]} has no folder crates: name a checkout of the advisory database", file=sys.stderr)
        sys.exit(2)
    for name in sorted(versions):
        for path in sorted(glob.glob(os.path.join(glob.escape(sys.argv[1]), "crates", name, "RUSTSEC-*.md"))):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            document = tomllib.loads(re.search(r"```toml\n(.*?)```", text, re.DOTALL).group(1))
            looked_at += 1
            if document["advisory"].get("withdrawn"):
                continue
            ranges = document.get("versions", {})
            safe = ranges.get("patched", []) + ranges.get("unaffected", [])
            for have in sorted(versions[name]):
                if not any(fits(requirement, have) for requirement in safe):
                    apply += 1
                    title = re.search(r"^# (.*)", text, re.MULTILINE)
                    kind = document["advisory"].get("informational", "vulnerability")
                    print(f"{name} {have}: {document['advisory']['id']} ({kind}): {title.group(1) if title else '?'}")
    print(f"{len(versions)} crates, {looked_at} advisories looked at, {apply} apply")
    sys.exit(1 if apply else 0)


main()
