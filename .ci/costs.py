"""A JUnit report of pytest -> the table of docs/tests.md: tests and seconds per file, most expensive first."""

import sys
import xml.etree.ElementTree
from collections import defaultdict


def main(path: str) -> None:
    seconds: dict[str, float] = defaultdict(float)
    tests: dict[str, int] = defaultdict(int)
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        name = case.attrib["classname"].replace(".", "/") + ".py"
        seconds[name] += float(case.attrib["time"])
        tests[name] += 1
    print("| file | tests | seconds |\n|---|---|---|")
    for name in sorted(seconds, key=lambda name: -seconds[name]):
        print(f"| {name} | {tests[name]} | {seconds[name]:.1f} |")
    print(f"| all | {sum(tests.values())} | {sum(seconds.values()):.0f} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
