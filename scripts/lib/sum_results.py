"""Adds up what ctest and pytest left under a directory and prints 'N passed, N failed'.

    sum_results.py DIRECTORY

DIRECTORY/<stage>/ctest.xml    ctest --output-junit
DIRECTORY/<stage>/gtest/*.xml  one report per gtest binary, named like its ctest test
DIRECTORY/<stage>/pytest.xml   pytest --junitxml
DIRECTORY/<stage>/status       exit status of the stage's command
A ctest test with a gtest report counts as the cases in it, any other as one. A stage or
a binary that failed without naming a failed case counts as one failure of its own.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree


class Sum:
    def __init__(self):
        self.passed = 0
        self.skipped = 0
        self.failed = []

    def add_cases(self, cases):
        """Counts a report's cases; returns how many of them failed."""
        failed_before = len(self.failed)
        for case in cases:
            name = f"{case.get('classname', '')}.{case.get('name', '')}"
            if case.find("failure") is not None or case.find("error") is not None:
                self.failed.append(name)
            elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
                self.skipped += 1
            else:
                self.passed += 1
        return len(self.failed) - failed_before


def cases_of(file):
    """The report's cases, or None where the test died before it was written whole."""
    try:
        return list(ElementTree.parse(file).getroot().iter("testcase"))
    except (ElementTree.ParseError, OSError):
        return None


def add_ctest(total, stage):
    for test in cases_of(stage / "ctest.xml") or []:
        name = test.get("name")
        failed = test.find("failure") is not None or test.get("status") == "fail"
        report = cases_of(stage / "gtest" / f"{name}.xml")
        named = total.add_cases(report) if report is not None else total.add_cases([] if failed else [test])
        if failed and not named:
            total.failed.append(name)


def is_build(stage):
    """A build is no test: it counts only when it fails."""
    return stage.name.startswith("build")


def add_stage(total, stage):
    failed_before = len(total.failed)
    add_ctest(total, stage)
    total.add_cases(cases_of(stage / "pytest.xml") or [])
    status = (stage / "status").read_text().strip() if (stage / "status").exists() else "missing"
    if len(total.failed) == failed_before:
        if status != "0":
            total.failed.append(f"{stage.name} (exit status {status})")
        elif not is_build(stage) and not any((stage / name).exists() for name in ("ctest.xml", "pytest.xml")):
            total.passed += 1


def main():
    total = Sum()
    for stage in sorted(Path(sys.argv[1]).iterdir()):
        if stage.is_dir():
            add_stage(total, stage)
    for name in total.failed:
        print(f"FAILED {name}")
    if total.skipped:
        print(f"{total.skipped} skipped")
    print(f"{total.passed} passed, {len(total.failed)} failed")
    sys.exit(1 if total.failed or not total.passed else 0)


if __name__ == "__main__":
    main()
