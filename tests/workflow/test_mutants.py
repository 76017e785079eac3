"""The mutation run names modules and tests that exist; it needs an extra of its own and is not run here."""
import ast

from conftest import ROOT, TESTS


def test_modules_and_their_tests_exist():
    tree = ast.parse((ROOT / "workflow" / "mutants.py").read_text())
    guards, = [ast.literal_eval(node.value) for node in tree.body
               if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "GUARDS"]
    for module, names in guards.items():
        assert (ROOT / "fedlib" / f"{module}.py").is_file()
        assert names and all((TESTS / f"{name}.py").is_file() for name in names.split())
