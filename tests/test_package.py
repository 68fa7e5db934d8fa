"""The package as a whole: what imports what, and whether the README's code runs."""

import ast
import pathlib
import re
import sys

import keras
import pytest

ROOT = pathlib.Path(__file__).parent.parent
MODULES = sorted((ROOT / "keras_attention").glob("*.py"))
README = (ROOT / "README.md").read_text(encoding="utf-8")

# Each module may import those to the left of it, and nothing to the right.
ORDER = (
    "functions checks token_ids parts masking base attention cells loop decoder encoder "
    "search beam generator serving assembly seq2seq"
).split()
APART = {("decoder", "encoder"), ("encoder", "decoder"), ("encoder", "attention")}
APART |= {(search, layer) for search in ("search", "beam") for layer in ("decoder", "encoder")}


def imports(path):
    """(module, names) of every import statement in a file, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module, [alias.name for alias in node.names]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_only_public_keras_numpy_and_the_standard_library_are_imported(path):
    allowed = sys.stdlib_module_names | {"keras", "keras_attention", "numpy"}
    if path.stem == "serving":  # where it is used: no other backend needs it
        allowed |= {"tensorflow"}
    for module, _ in imports(path):
        assert module.split(".")[0] in allowed, module
        assert not module.startswith("keras.src"), module


def test_tensorflow_is_imported_where_it_is_used():
    module = ast.parse((ROOT / "keras_attention" / "serving.py").read_text(encoding="utf-8"))
    at_the_top = [
        node for node in module.body if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    assert not any("tensorflow" in ast.unparse(node) for node in at_the_top)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_the_arrows_of_import_point_one_way(path):
    if path.stem == "__init__":
        return
    assert path.stem in ORDER, f"say in ORDER where {path.stem} stands"
    for module, names in imports(path):
        if module.split(".")[0] != "keras_attention":
            continue
        targets = names if module == "keras_attention" else [module.split(".")[1]]
        for target in targets:
            assert ORDER.index(target) < ORDER.index(path.stem), f"{path.stem} -> {target}"
            assert (path.stem, target) not in APART


def test_no_private_keras_api_is_used():
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                owner = node.value.id if isinstance(node.value, ast.Name) else ""
                private = node.attr.startswith("_") and not node.attr.startswith("__")
                named_tuple = node.attr in ("_replace", "_asdict")
                assert not private or owner == "self" or named_tuple, (
                    f"{path.name}:{node.lineno} {node.attr}"
                )


def test_the_readme_holds_no_placeholder():
    assert not re.findall(r"(?i)\b(?:TODO|TBD|FIXME|XXX)\b|[.?]{2} ?%|[…?] ?%", README)


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_readme_s_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = blocks("python")
    assert len(found) >= 1
    names = {}
    for block in found:
        exports = ".export(" in block or "saved_model" in block
        if exports and keras.backend.backend() != "tensorflow":
            continue  # as the README says
        exec(compile(block, "README.md", "exec"), names)


def test_the_readme_s_pictures_and_files_exist():
    links = re.findall(r"\]\(((?!http|#)[^)]+)\)", README)
    for link in links:
        assert (ROOT / link).exists(), link
