"""The floors of the package: which file may import which, and what no file may contain."""

import ast
import configparser
import functools
import importlib
import inspect
import io
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import tokenize
import types

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGE = pathlib.Path(__file__).parents[1] / "keras_transformer"
FILES = sorted(PACKAGE.rglob("*.py"))
# The parts of each floor. Decoding knows no layer and no model, and models call it: it stands below them.
FLOORS = (
    "masks schedules losses embedding_losses entity_labels metrics optimizers execution checks files fonts "
    "keras_internals fields lazy recordings request_options schemas sentences termination untrusted version",
    "decoding layers",
    "models",
    "text data explain training plots",
    "client huggingface serving",
    "runs",
    "cli",
    "__main__ __init__",
)
FLOORS = {part: floor for floor, parts in enumerate(FLOORS) for part in parts.split()}
# Files of floor 0 share a folder, so they may use one another; a folder never uses its neighbour.
FLAT = {part for part, floor in FLOORS.items() if floor == 0}
WITH_TENSORFLOW = {"text", "data", "training", "serving", "runs", "cli"}
FORBIDDEN = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
# Files that may import `keras.src`.
KERAS_SRC = {"keras_internals.py"}  # the home of Keras's private names
# Files that may use private attributes of objects of another library.
FOREIGN_PRIVATE = {
    "keras_internals.py",  # the home of Keras's private names
    "layers/keras_attention.py",  # asks whether a subclass overrides `_compute_attention`
    "execution/inference.py",  # assigns a variable as Keras's own scope does
    "text/sentence_piece_ops.py",  # `_model_resource` of tensorflow-text, whose version setup.cfg pins
}
# Keras classes whose private names a subclass may use and override in a file.
KERAS_OVERRIDES = {
    # A subclass of Keras's layer: the names of sublayers and of hooks are the interface that saving and LoRA rely on.
    "layers/attention.py": {"MultiHeadAttention"},
    "layers/keras_attention.py": {"MultiHeadAttention"},
    # Keras's Muon asks hooks of its own which weights are matrices, and how to update one.
    "optimizers.py": {"Muon"},
}
# The hook after `build`, which every composite layer overrides to freeze what it made; see layers/base.py.
KERAS_HOOKS = {"Operation._post_build"}
NAMEDTUPLE = {"_replace", "_asdict", "_fields"}  # public, in spite of the underscore


def part_of(file):
    """`layers` for `layers/attention.py`, `masks` for `masks.py`."""
    inside = file.relative_to(PACKAGE)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def imports(tree):
    """Yields (node, absolute name of the module) for each import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written out"
            if node.module == "keras_transformer":
                yield from ((node, f"keras_transformer.{alias.name}") for alias in node.names)
            else:
                yield node, node.module


@functools.cache
def parse(file):
    return ast.parse(file.read_text(encoding="utf-8"))


def name_of(file):
    return file.relative_to(PACKAGE).as_posix()


def offenders(rule, files=FILES):
    """Returns what `rule(file, tree)` yields for each file that breaks the rule."""
    messages = {name_of(file): list(rule(file, parse(file))) for file in files}
    return {name: lines for name, lines in messages.items() if lines}


def names_in(tree):
    """The names and attributes that a file uses."""
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return names | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def upward_imports(file, tree):
    """Yields a message for each import that does not go to a lower floor."""
    part = part_of(file)
    for node, module in imports(tree):
        names = module.split(".")
        if names[0] != "keras_transformer" or len(names) == 1:
            continue
        other = names[1]
        inside = other == part or {part, other} <= FLAT
        if not inside and FLOORS[other] >= FLOORS[part]:
            yield f"line {node.lineno}: {part} [{FLOORS[part]}] imports {other} [{FLOORS[other]}]"


def test_imports_go_down():
    assert offenders(upward_imports) == {}


def test_every_package_that_is_imported_is_declared():
    names = {"google": "protobuf", "grpc": "grpcio", "tensorflow_serving": "tensorflow-serving-api"}
    imported = {module.split(".")[0] for file in FILES for _, module in imports(parse(file))}
    imported -= {*sys.stdlib_module_names, PACKAGE.name}
    options = configparser.ConfigParser()
    options.read(PACKAGE.parent / "setup.cfg")
    lines = "\n".join([options["options"]["install_requires"], *options["options.extras_require"].values()])
    declared = {
        re.split(r"[^\w-]", line)[0].replace("_", "-") for line in lines.splitlines() if line[:1] != "#"
    }
    assert {names.get(name, name).replace("_", "-") for name in imported} <= declared


def test_every_file_has_a_floor():
    assert {part_of(file) for file in FILES} == FLOORS.keys()


@pytest.mark.parametrize(
    ("part", "line", "wrong"),
    [
        ("layers/x.py", "from keras_transformer.models import Transformer", True),
        ("layers/x.py", "import keras_transformer.models.transformer", True),
        ("layers/x.py", "from keras_transformer import models", True),
        ("text/x.py", "from keras_transformer.data import Batches", True),
        ("decoding/x.py", "def f():\n    from keras_transformer.layers import KVCache", True),
        ("masks.py", "from keras_transformer.layers import KVCache", True),
        ("metrics.py", "from keras_transformer.losses import targets_and_weights", False),
        ("layers/x.py", "from keras_transformer.layers.cache import KVCache", False),
        ("models/x.py", "from keras_transformer.decoding import Greedy", False),
        ("serving/x.py", "from keras_transformer import layers, text", False),
    ],
)
def test_upward_imports_are_seen(part, line, wrong):
    assert bool(list(upward_imports(PACKAGE / part, ast.parse(line)))) is wrong


def backends(file, tree):
    """Yields each import of TensorFlow, JAX and PyTorch, but for the files of a backend in `execution`."""
    own = re.fullmatch(r"execution/(tensorflow|jax)(_training|_calls)?\.py", name_of(file))
    for node, module in imports(tree):
        library = module.split(".")[0]
        if library in ("tensorflow", "tensorflow_text", "jax", "torch") and library != (own and own[1]):
            yield f"line {node.lineno}: {library}"


def test_core_names_no_backend():
    assert offenders(backends, [file for file in FILES if part_of(file) not in WITH_TENSORFLOW]) == {}


def ways_to_compute(file, tree):
    """Yields what chooses a way to compute: XLA, few rows, state outside the arguments."""
    yield from {module.split(".")[0] for _, module in imports(tree)} & {"contextvars", "weakref", "gc"}
    yield from names_in(tree) & {"in_xla", "int8_column_sums", "FEW_ROWS", "makes_inference_graph"}
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    yield from calls & {"keras.backend.backend"}


def test_speed_stays_in_its_house():
    core = ("layers", "models", "decoding", "masks", "losses", "metrics")
    assert offenders(ways_to_compute, [file for file in FILES if part_of(file) in core]) == {}


def foreign_code(file, tree):
    """Yields what loads or runs code that is not the program's."""
    yield from {module.split(".")[0] for _, module in imports(tree)} & FORBIDDEN
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    yield from {getattr(call.func, "id", None) for call in calls} & {"eval", "exec", "compile", "__import__"}
    unsafe = {"safe_mode=False", "allow_pickle=True", "shell=True"}
    yield from {f"{word.arg}={ast.unparse(word.value)}" for call in calls for word in call.keywords} & unsafe
    if "enable_unsafe_deserialization" in file.read_text(encoding="utf-8"):
        yield "enable_unsafe_deserialization"


def test_nothing_loads_or_runs_foreign_code():
    assert offenders(foreign_code) == {}


def counted_frames(file, tree):
    """Yields each line that counts frames to name the line of a warning: `checks.warn` finds it."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    yield from [call.lineno for call in calls if "stacklevel" in {word.arg for word in call.keywords}]


def test_warnings_find_the_line_that_they_name():
    assert list(offenders(counted_frames)) == ["checks.py"]


def too_long(file, tree):
    """Yields the length of a long file, without docstrings: they are complete, and longer than their code."""
    length = len(file.read_text(encoding="utf-8").splitlines())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            length -= node.body[0].end_lineno - node.body[0].lineno + 1
    if length > 340:
        yield length


def test_files_are_short():
    assert offenders(too_long) == {}


def long_signatures(tree, owner=""):
    """Yields each function with more than nine parameters, with the class that it is in."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = {each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
            if len(names - {"self", "cls"}) > 9:
                yield owner + node.name
        name = f"{node.name}." if isinstance(node, ast.ClassDef) else owner
        yield from long_signatures(node, name)


def test_functions_with_many_parameters_are_those_of_the_decision():
    (record,) = (PACKAGE.parent / "docs" / "decisions").glob("0071-*.md")
    cells = re.findall(r"^\| (`.*`) \|", record.read_text(encoding="utf-8"), re.MULTILINE)
    files = [file for file in FILES if part_of(file) != "execution"]
    found = [name for file in files for name in long_signatures(parse(file))]
    assert sorted(found) == sorted(re.findall("`([^`]+)`", " ".join(cells)))


def long_comments(file, tree):
    """Yields each comment of more than four words behind a statement: it stands above, or it splits the statement."""
    text = file.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        words = token.string.removeprefix("#").split()
        is_behind = token.line[: token.start[1]].strip()
        if token.type == tokenize.COMMENT and is_behind and len(words) > 4 and words[0] != "noqa:":
            yield f"line {token.start[0]}: {token.string}"


def test_long_comments_stand_above_their_statements():
    assert offenders(long_comments) == {}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def is_own(node):
    """Whether an attribute is one of `self`, `cls` or `super()`."""
    value = node.value.func if isinstance(node.value, ast.Call) else node.value
    return isinstance(value, ast.Name) and value.id in ("self", "cls", "super")


def private_attributes(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_private(node.attr)]


@functools.cache
def private_names(cls):
    """The private names that a class defines or assigns to `self`, and the private names that it uses."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    methods = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    own = [node for node in private_attributes(tree) if is_own(node)]
    defined = {name for name in methods | vars(cls).keys() if is_private(name)}
    return defined | {node.attr for node in own if isinstance(node.ctx, ast.Store)}, {
        node.attr for node in own
    } | defined


def keras_names_used(cls, allowed=()):
    """The private names of Keras that a class uses, with those of its bases in this package."""
    of_keras = [base for base in cls.__mro__ if base.__module__.startswith("keras.src")]
    of_package = [
        base for base in cls.__mro__ if base is cls or base.__module__.startswith("keras_transformer")
    ]
    theirs = {name: base.__name__ for base in of_keras for name in private_names(base)[0]}
    used = {name for base in of_package for name in private_names(base)[1]}
    return {f"{theirs[name]}.{name}" for name in used & theirs.keys() if theirs[name] not in allowed}


def foreign_private_names(file, tree):
    """Yields each private name of another library."""
    if name_of(file) not in KERAS_SRC:
        yield from [module for _, module in imports(tree) if module.startswith("keras.src")]
    if name_of(file) not in FOREIGN_PRIVATE:
        foreign = [node for node in private_attributes(tree) if not is_own(node)]
        yield from [f"line {n.lineno}: {n.attr}" for n in foreign if n.attr not in NAMEDTUPLE]


def test_private_names_of_other_libraries_stay_in_one_file():
    assert offenders(foreign_private_names) == {}


def test_no_class_uses_or_hides_a_private_name_of_its_keras_base():
    for name in map(name_of, FILES):
        if name == "__main__.py":
            continue
        module = importlib.import_module(".".join(["keras_transformer", *name[:-3].split("/")]))
        for cls in vars(module).values():
            if inspect.isclass(cls) and cls.__module__ == module.__name__:
                assert not keras_names_used(cls, KERAS_OVERRIDES.get(name, ())) - KERAS_HOOKS, cls


def test_private_names_are_seen():
    import keras

    class Hiding(keras.layers.Layer):
        def build(self, input_shape):
            self._lock = True

    class Using(keras.optimizers.Adam):
        def update_step(self, gradient, variable, learning_rate):
            self._momentums[0].assign(gradient)

    assert {used.split(".")[1] for used in keras_names_used(Hiding)} == {"_lock"}
    assert keras_names_used(Using) == {"Adam._momentums"} and not keras_names_used(Using, {"Adam"})
    found = private_attributes(ast.parse("optimizer._momentums; self._own; super()._up()"))
    assert [node.attr for node in found if not is_own(node)] == ["_momentums"]


def printed(code, backend="tensorflow"):
    """The value that the last line of code prints, run by a new Python process."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return ast.literal_eval(done.stdout.strip().splitlines()[-1])


def loaded_by_import(backend, *modules, package="keras_transformer"):
    """Which of the modules the import of a package loads, where `import keras` has not loaded them already."""
    missing = f"[m for m in {modules!r} if m not in sys.modules]"
    code = f"import sys, keras; before = {missing}; import {package}; after = {missing}"
    return printed(f"{code}; print([m for m in before if m not in after])", backend)


def test_import_loads_no_library_that_only_some_users_need():
    modules = "tensorflow_text sentencepiece sacrebleu requests grpc safetensors jinja2 matplotlib"
    assert loaded_by_import("tensorflow", *modules.split()) == []


@pytest.mark.slow
def test_import_of_checkpoints_loads_no_library_that_reads_them():
    modules = "torch transformers safetensors tensorflow_text tokenizers"
    assert loaded_by_import("tensorflow", *modules.split(), package="keras_transformer.huggingface") == []


@pytest.mark.slow
def test_import_on_jax_leaves_tensorflow_alone():
    pytest.importorskip("jax")
    assert loaded_by_import("jax", "tensorflow", "tensorflow_text") == []


LAZY = "cli client data decoding explain huggingface layers losses masks metrics models plots runs schedules serving"
LAZY = [*LAZY.split(), "text", "training"]


@pytest.mark.slow
def test_each_lazy_module_is_an_attribute_of_the_package():
    """In a new process, because an import in another test would make the attribute."""
    code = f"import keras_transformer as kt; print([getattr(kt, name).__name__ for name in {LAZY}])"
    assert printed(code) == [f"keras_transformer.{name}" for name in LAZY]


def registered_names(file):
    """The classes of a file that have Keras's decorator."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ClassDef) and "register_keras_serializable" in "".join(
            map(ast.unparse, node.decorator_list)
        ):
            yield node.name


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        "import keras; import keras_transformer",
        "import keras_transformer; import keras",
        "import keras_transformer; import tensorflow; tensorflow.keras.Model; import keras",
        "import keras; import keras_transformer.layers",
        "from keras_transformer.text import SentencePieceTokenizer; import keras",
        "import keras_transformer.models; import keras",
    ],
)
def test_a_program_with_keras_can_load_files_after_the_imports(imports):
    registered = {name for file in FILES for name in registered_names(file)}
    assert {"Transformer", "Adam", "WarmupSchedule", "Perplexity"} <= registered
    find = "keras.saving.get_registered_object('keras_transformer>' + name) is None"
    assert printed(f"{imports}; print([name for name in {sorted(registered)} if {find}])") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted({path.stem for path in PACKAGE.iterdir()} - {"__init__", "__main__", "__pycache__"})
)
def test_any_module_can_be_the_first_that_a_program_imports(name):
    """In a new process. The module may be the one that imports Keras, whose import waits for the models."""
    assert printed(f"import keras_transformer.{name}, keras_transformer.models; print([1])") == [1]


def test_dir_and_all_name_every_public_module_and_nothing_else():
    public = {file.name for file in PACKAGE.iterdir() if (file / "__init__.py").exists()}
    public |= {"explain", "losses", "masks", "metrics", "schedules"}
    public.remove("execution")  # the library's own
    assert set(LAZY) == public
    package = importlib.import_module("keras_transformer")
    assert dir(package) == sorted(package.__all__)
    modules = {name for name in dir(package) if isinstance(getattr(package, name), types.ModuleType)}
    assert modules == public


def test_an_unknown_name_is_no_attribute_of_the_package():
    with pytest.raises(AttributeError, match="has no attribute 'trainning'"):
        importlib.import_module("keras_transformer").trainning  # noqa: B018


def files_entered(call):
    """The names of the files of the package that a call enters."""
    files = set()

    def trace(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            files.add(name_of(pathlib.Path(frame.f_code.co_filename)).removesuffix(".py"))

    sys.setprofile(trace)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


def tables(head, page="docs/architecture.md"):
    """Yields the first line of each table of a page that begins so, and its rows. A row is a list of cells."""
    text = (PACKAGE.parent / page).read_text(encoding="utf-8")
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
        first, _, *rows = table.splitlines()
        if first.startswith(f"| {head}"):
            yield first, [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def code_in(text):
    return re.findall("`([^`]*)`", text)


def test_the_documents_list_the_files_that_a_pass_enters():
    import numpy as np

    import keras_transformer as kt

    model = kt.Transformer(11, num_layers=2, d_model=8, num_heads=2, d_ff=16)
    source, target = np.full((2, 5), 7, "int32"), np.full((2, 3), 7, "int32")
    model({"source": source, "target": target})
    memory, cache = model.encode(source), model.decoder.empty_cache(2, 4)
    calls = [
        lambda: model({"source": source, "target": target}),
        lambda: model.decode(target[:, :1], memory, cache=cache, index=0),
        lambda: model.generate(source, max_length=4),
    ]
    ((_, rows),) = tables("call")
    listed = set()
    for call, (name, count, files) in zip(calls, rows, strict=True):
        listed = (listed if files.startswith("the same") else set()) | set(code_in(files))
        assert sorted(listed) == sorted(files_entered(call)), name
        assert int(count) == len(listed), name


def test_the_documents_list_the_files_of_each_folder():
    listed = [
        code_in(head)[0] + name
        for head, rows in tables("file of")
        for cell, _ in rows
        for name in code_in(cell)
    ]
    kinds = (".py", ".js", ".html", ".css", ".json")
    inside = [name_of(file) for file in PACKAGE.rglob("*") if file.suffix in kinds and file.parent != PACKAGE]
    files = [name.removesuffix(".py") for name in inside if not name.endswith("__init__.py")]
    assert sorted(listed) == sorted(files)


def test_the_documents_name_what_each_floor_imports():
    """Where a row says "floor 0", it need not name the files of floor 0."""
    ((_, rows),) = tables("floor")
    listed = []
    for floor, files, imported in rows:
        parts = {pathlib.PurePath(name).stem for name in code_in(files)} & FLOORS.keys()
        assert {FLOORS[part] for part in parts} == {int(floor)}
        modules = [name for file in FILES if part_of(file) in parts for _, name in imports(parse(file))]
        others = {name.split(".")[1] for name in modules if name.startswith("keras_transformer.")} - parts
        if "floor 0" in imported:
            others -= FLAT
        assert {pathlib.PurePath(name).stem for name in code_in(imported)} == others, files
        listed += parts
    assert sorted(listed) == sorted(FLOORS.keys() - {"__init__", "__main__"})


def test_contributors_are_told_where_to_begin():
    """Each file exists, and a name that stands before a file is in it."""
    ((_, rows),) = tables("I want to add", "CONTRIBUTING.md")
    assert len(rows) == 13
    for _, *places, test in rows:
        for root, cell in [*((PACKAGE, place) for place in places), (PACKAGE.parent / "tests", test)]:
            names = []
            for code in code_in(cell):
                if not {"/", "."} & set(code):
                    names.append(code)
                    continue
                assert (root / code).exists(), code
                text = (root / code).read_text(encoding="utf-8") if code.endswith(".py") else ""
                assert [name for name in names if name not in text] == [], code
                names = []


def test_locked_versions_are_those_that_setup_cfg_allows():
    """`make lock` writes requirements/ again after a change of setup.cfg."""
    root = PACKAGE.parent
    options = configparser.ConfigParser()
    options.read(root / "setup.cfg")
    for path in sorted((root / "requirements").glob("*.txt")):
        pinned = {}
        for line in re.findall(r"^\S.*==.*(?= \\$)", path.read_text(), re.M):
            requirement = Requirement(line)
            pinned.setdefault(canonicalize_name(requirement.name), []).append(requirement.specifier)
        wanted = options["options"]["install_requires"] + options["options.extras_require"][path.stem]
        lines = [line for line in wanted.splitlines() if line and not line.startswith("#")]
        wrong = [
            line
            for line in lines
            for versions in [pinned.get(canonicalize_name(Requirement(line).name), [])]
            if not versions
            or not all(next(iter(each)).version in Requirement(line).specifier for each in versions)
        ]
        # The project itself is built with the setuptools of the environment.
        assert len(lines) > 10 and wrong == [] and "setuptools" in pinned, path.name
