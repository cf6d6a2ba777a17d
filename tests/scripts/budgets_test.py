"""The budget check finds functions by their braces and notices what is too long."""

import unittest

import budgets


def found(text):
    return [(first, lines, parameters) for first, lines, parameters, _ in budgets.functions_of(text)]


class Functions(unittest.TestCase):
    def test_length_runs_from_signature_to_closing_brace(self):
        text = "namespace a {\nint f(int x,\n      int y) {\n  if (x) {\n  }\n  return y;\n}\n}\n"
        self.assertEqual(found(text), [(2, 6, 2)])

    def test_comments_and_literals_hide_their_braces(self):
        self.assertEqual(found('void f() {\n  // }\n  g("}", \'}\', R"x(})x");\n  /* } */\n}\n'), [(1, 5, 0)])

    def test_members_and_initialiser_lists(self):
        text = "class A {\n public:\n  A(int a, int b) : a_{a}, b_(b) {\n    g();\n  }\n"
        text += "  int a_ = 1;\n  int f() const { return a_; }\n};\n"
        self.assertEqual(found(text), [(3, 3, 2), (7, 1, 0)])

    def test_types_and_tables_are_no_functions(self):
        self.assertEqual(found("struct A { int a; };\nenum class E { kA };\nconstexpr int kT[] = {f(1), 2};\n"), [])

    def test_template_commas_separate_no_parameters(self):
        self.assertEqual(found("void f(std::map<int, int> m, int (*g)(int, int)) {}\n"), [(1, 1, 2)])

    def test_a_lambda_belongs_to_its_function(self):
        self.assertEqual(found("void f() {\n  auto g = [](int a) {\n    return a;\n  };\n}\n"), [(1, 5, 0)])


class Budgets(unittest.TestCase):
    def problems(self, name, text):
        return list(budgets.check_file(name, text, []))

    def test_long_function(self):
        body = "  g();\n" * budgets.MAX_FUNCTION_LINES
        self.assertIn("72 lines, at most 70", self.problems("src/a/b.cc", f"void f() {{\n{body}}}\n")[0])

    def test_many_parameters(self):
        parameters = ", ".join(f"int p{i}" for i in range(7))
        self.assertIn("7 parameters", self.problems("src/a/b.cc", f"void f({parameters}) {{}}\n")[0])

    def test_long_file(self):
        self.assertIn("701 lines", self.problems("docs/a.md", "x\n" * 701)[0])

    def test_header_opening(self):
        self.assertEqual(self.problems("src/a/b.h", "// What it is.\n#pragma once\n"), [])
        self.assertIn("0 comment lines", self.problems("src/a/b.h", "#pragma once\n")[0])
        self.assertIn("13 comment lines", self.problems("src/a/b.h", "// x\n" * 13)[0])

    def test_directory_readme(self):
        self.assertIn("41 lines", self.problems("src/a/README.md", "x\n" * 41)[0])
        self.assertEqual(self.problems("README.md", "x\n" * 41), [])


if __name__ == "__main__":
    unittest.main()
