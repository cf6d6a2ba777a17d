"""The layering check notices planted wrong includes, and lets right ones pass."""

import os
import tempfile
import unittest
from pathlib import Path

import include_graph


class IncludeGraph(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = Path(directory.name)
        for name in ("base/a.h", "device/copier.h", "device/host/h.h", "shm/s.h", "../include/orbitkv/c.h"):
            self.plant(f"src/{name}", "")

    def plant(self, name, text):
        path = Path(os.path.normpath(self.root / name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def assert_refused(self, file, line, why):
        self.plant(file, line + "\n")
        problems = include_graph.check(self.root)
        self.assertEqual(len(problems), 1, problems)
        self.assertIn(f"{file}:1:", problems[0])
        self.assertIn(why, problems[0])

    def assert_allowed(self, file, line):
        self.plant(file, line + "\n")
        self.assertEqual(include_graph.check(self.root), [])

    def test_arrows_point_one_way(self):
        self.assert_allowed("src/shm/x.cc", '#include "base/a.h"')
        self.assert_refused("src/base/x.cc", '#include "shm/s.h"', "src/base may include nothing of ours, not src/shm")

    def test_siblings_never_meet(self):
        self.assert_refused("src/device/x.cc", '#include "shm/s.h"', "not src/shm")

    def test_a_seam_does_not_know_its_implementation(self):
        self.assert_allowed("src/device/host/x.cc", '#include "device/copier.h"')
        self.assert_refused("src/device/x.cc", '#include "device/host/h.h"', "not src/device/host")

    def test_the_manager_touches_no_device(self):
        self.assert_refused("src/daemon/x.cc", '#include "device/copier.h"', "not src/device")

    def test_examples_and_bindings_see_installed_headers_only(self):
        self.assert_allowed("python/bindings/m.cc", '#include "orbitkv/c.h"')
        self.assert_refused("examples/x.cc", '#include "base/a.h"', "examples may include include")

    def test_a_detour_by_relative_path_is_seen(self):
        self.assert_refused("src/base/x.cc", '#include "../shm/s.h"', "not ")

    def test_tests_are_bound_to_their_library(self):
        self.assert_refused("src/base/x_test.cc", '#include "shm/s.h"', "not src/shm")

    def test_plain_values_are_for_all_and_the_rest_of_the_installed_headers_is_not(self):
        self.plant("include/orbitkv/types.h", "")
        self.assert_allowed("src/model/x.cc", '#include "orbitkv/types.h"')
        self.assert_refused("src/model/x.cc", '#include "orbitkv/c.h"', "not include")

    def test_third_party_stays_where_it_belongs(self):
        self.assert_allowed("src/daemon/x.cc", "#include <CLI/CLI.hpp>")
        self.assert_allowed("src/base/x_test.cc", "#include <gtest/gtest.h>")
        self.assert_refused("src/client/x.cc", "#include <nlohmann/json.hpp>", "only bench, src/daemon")

    def test_test_framework_stays_out_of_the_product(self):
        self.assert_refused("src/base/x.cc", "#include <gtest/gtest.h>", "only tests")

    def test_unknown_dependency_is_refused(self):
        self.assert_refused("src/base/x.cc", "#include <boost/any.hpp>", "unknown third-party header")

    def test_heavy_headers_stay_out_of_headers(self):
        self.assert_allowed("src/base/x.cc", "#include <regex>")
        self.assert_refused("src/base/x.h", "#include <regex>", "too heavy")

    def test_missing_file_is_named(self):
        self.assert_refused("src/base/x.cc", '#include "base/no.h"', "no such file")

    def test_new_library_needs_a_row(self):
        self.assert_allowed("src/base/x.cc", "#include <sys/mman.h>")
        self.plant("src/peer/x.cc", "")
        self.assertIn("no library owns this directory", include_graph.check(self.root)[0])


if __name__ == "__main__":
    unittest.main()
