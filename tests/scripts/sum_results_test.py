"""No failure gets lost between the reports and the closing line."""

import tempfile
import unittest
from pathlib import Path

import sum_results


def junit(*cases):
    return "<testsuite>" + "".join(cases) + "</testsuite>"


def case(name, inside="", status="run"):
    return f'<testcase classname="C" name="{name}" status="{status}">{inside}</testcase>'


class SumResults(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = Path(directory.name)

    def sum(self, files, name="stage"):
        for file, text in files.items():
            path = self.root / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        total = sum_results.Sum()
        sum_results.add_stage(total, self.root / name)
        return total.passed, total.failed, total.skipped

    def test_gtest_cases_replace_their_binary(self):
        files = {
            "status": "8",
            "ctest.xml": junit(case("a_test", "<failure/>", "fail"), case("layering")),
            "gtest/a_test.xml": junit(case("x"), case("y", "<failure/>"), case("z", "<skipped/>")),
        }
        self.assertEqual(self.sum(files), (2, ["C.y"], 1))

    def test_a_binary_that_failed_after_its_cases_passed_counts(self):
        files = {
            "status": "8",
            "ctest.xml": junit(case("a_test", "<failure/>", "fail")),
            "gtest/a_test.xml": junit(case("x")),
        }
        self.assertEqual(self.sum(files), (1, ["a_test"], 0))

    def test_a_crash_leaves_no_report_and_counts(self):
        files = {"status": "8", "ctest.xml": junit(case("a_test", "<failure/>", "fail"))}
        self.assertEqual(self.sum(files), (0, ["a_test"], 0))
        files["gtest/a_test.xml"] = "<testsuite><testca"
        self.assertEqual(self.sum(files), (0, ["a_test"], 0))

    def test_a_stage_that_died_without_a_report_counts(self):
        self.assertEqual(self.sum({"status": "139"}), (0, ["stage (exit status 139)"], 0))
        self.assertEqual(self.sum({"status": "3", "pytest.xml": junit()}), (0, ["stage (exit status 3)"], 0))
        self.assertEqual(self.sum({"log": ""}, "cut_short"), (0, ["cut_short (exit status missing)"], 0))

    def test_a_stage_without_reports_is_one_test_and_a_build_none(self):
        self.assertEqual(self.sum({"status": "0"}, "fuzz"), (1, [], 0))
        self.assertEqual(self.sum({"status": "0"}, "build-asan"), (0, [], 0))


if __name__ == "__main__":
    unittest.main()
