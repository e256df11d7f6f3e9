"""Compare every use of TensorRT's Python API in some source files with the API of an importable module.

    python conformance.py MODULE FILE...

prints JSON: {"uses": ["IBuilderConfig.set_flag", ...], "problems": ["builder.py:12: ...", ...]}. The uses are read from
the sources by following calls: `builder = trt.Builder(logger)` makes `builder` a Builder, `builder.create_network(...)`
what pybind11's signature in the method's docstring says it returns. Function parameters and attributes carry no types,
so they go by their names (RECEIVERS), and a parameter annotated Any that is not among them is itself a problem.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

RECEIVERS = {
    "trt": None,  # the module
    "builder": "Builder",
    "network": "INetworkDefinition",
    "parser": "OnnxParser",
    "config": "IBuilderConfig",
    "layer": "ILayer",
    "boundary": "IAttentionBoundaryLayer",
    "tensor": "ITensor",
    "logger": "ILogger",
    "error": "ParserError",
    "creator": "IPluginCreatorV3One",
    "engine": "ICudaEngine",
    "execution": "IExecutionContext",
    "severity": "ILogger.Severity",
}
NOT_TENSORRT = {"phases", "cuda", "gpu", "log"}
"""Parameters annotated Any that hold something else."""
FOREIGN = {"runners": {"config", "logger"}}
"""By folder, names of RECEIVERS that mean something else there: the serving runners' are their own classes'."""


@dataclass(frozen=True)
class Module:
    module: ModuleType


@dataclass(frozen=True)
class Class:
    cls: type


@dataclass(frozen=True)
class Instance:
    cls: type


@dataclass(frozen=True)
class Function:
    name: str
    doc: str
    bound: bool


Value = Module | Class | Instance | Function | None


@dataclass(frozen=True)
class Signature:
    names: tuple[str, ...]
    required: int
    variadic: bool
    returns: str

    @staticmethod
    def of(function: Function) -> list[Signature]:
        """Every overload that the docstring of a pybind11 function lists."""
        bare = function.name.rpartition(".")[2]
        pattern = rf"^(?:\d+\. )?{bare}\((.*)\) -> (\S.*)$"
        found = [Signature._parse(*match) for match in re.findall(pattern, function.doc, re.MULTILINE)]
        return [signature for signature in found if not signature.variadic] or found

    @staticmethod
    def _parse(parameters: str, returns: str) -> Signature:
        parts, depth, start = [], 0, 0
        for index, letter in enumerate(parameters + ","):
            depth += (letter in "[(<{") - (letter in "])>}")
            if letter == "," and depth == 0:
                parts.append(parameters[start:index].strip())
                start = index + 1
        parts = [part for part in parts if part]
        names = tuple(part.partition(":")[0].strip() for part in parts)
        return Signature(names, sum(" = " not in part for part in parts), "*args" in names, returns.rpartition(".")[2])


@dataclass
class Checker:
    """One module against any number of sources."""

    module: ModuleType
    foreign: frozenset[str] = frozenset()
    uses: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def check(self, source: str, name: str) -> None:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                _FunctionChecker(self, name).run(node)
            elif isinstance(node, ast.ClassDef):
                self._check_overrides(node, name)

    def named(self, path: str | None) -> Value:
        if path is None:
            return Module(self.module)
        found: Any = self.module
        for part in path.split("."):
            found = getattr(found, part, None)
        return Instance(found) if isinstance(found, type) else None

    def _check_overrides(self, node: ast.ClassDef, file: str) -> None:
        """A class derived from one of TensorRT's overrides methods that exist, with as many arguments."""
        for base in node.bases:
            if not (isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name) and base.value.id == "trt"):
                continue
            cls = getattr(self.module, base.attr, None)
            for method in (item for item in node.body if isinstance(item, ast.FunctionDef)):
                if method.name.startswith("_"):
                    continue
                self.uses.add(f"{base.attr}.{method.name}")
                doc = getattr(getattr(cls, method.name, None), "__doc__", None)
                if doc is None:
                    self.problems.append(f"{file}:{method.lineno}: {base.attr} has no method {method.name} to override")
                    continue
                expected = Signature.of(Function(method.name, doc, True))
                if all(len(signature.names) != len(method.args.args) for signature in expected):
                    self.problems.append(f"{file}:{method.lineno}: {base.attr}.{method.name} has other arguments")


class _FunctionChecker:
    """Follows the values of one function body."""

    def __init__(self, checker: Checker, file: str) -> None:
        self.checker, self.file = checker, file
        self.local: dict[str, Value] = {}
        self.foreign = set(checker.foreign)

    def run(self, function: ast.FunctionDef) -> None:
        arguments = [*function.args.args, *function.args.kwonlyargs]
        for argument in arguments:
            untyped = isinstance(argument.annotation, ast.Name) and argument.annotation.id == "Any"
            if untyped and argument.arg not in RECEIVERS and argument.arg not in NOT_TENSORRT:
                self._fail(function, f"say in RECEIVERS what the parameter '{argument.arg}' of {function.name} is")
            if argument.annotation is not None and not untyped:
                self.foreign.add(argument.arg)  # something of our own, whatever its name
        for statement in function.body:
            self._visit(statement)

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            return  # visited by itself
        if isinstance(node, ast.Assign):
            value = self._value(node.value)
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self.local[target.id] = value
                elif isinstance(target, ast.Attribute):
                    self._check_assignment(target)
                else:
                    self._visit(target)
            return
        if isinstance(node, ast.expr):
            self._value(node)
            return
        if isinstance(node, ast.ExceptHandler) and node.name:
            self.foreign.add(node.name)
        for child in ast.iter_child_nodes(node):
            self._visit(child)

    def _value(self, node: ast.AST) -> Value:
        if isinstance(node, ast.Name):
            return self._by_name(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value)
            return self._by_name(node.attr.lstrip("_")) if owner is None else self._attribute(owner, node)
        if isinstance(node, ast.Call):
            return self._call(node)
        for child in ast.iter_child_nodes(node):
            self._visit(child)
        return None

    def _by_name(self, name: str) -> Value:
        if name in self.foreign:
            return None
        return self.local.get(name) or (self.checker.named(RECEIVERS[name]) if name in RECEIVERS else None)

    def _attribute(self, owner: Value, node: ast.Attribute) -> Value:
        holder = owner.module if isinstance(owner, Module) else getattr(owner, "cls", None)
        if holder is None:
            return None
        name = node.attr if isinstance(owner, Module) else f"{holder.__qualname__}.{node.attr}"
        self.checker.uses.add(name)
        if not hasattr(holder, node.attr):
            self._fail(node, f"there is no {name}")
            return None
        found = getattr(holder, node.attr)
        if isinstance(found, type):
            return Class(found)
        if isinstance(found, property):
            return None
        if callable(found):
            return Function(name, found.__doc__ or "", isinstance(owner, Instance))
        return Instance(type(found)) if isinstance(owner, Class) else None

    def _check_assignment(self, target: ast.Attribute) -> None:
        owner = self._value(target.value)
        if owner is None:
            return
        self._attribute(owner, target)
        found = getattr(getattr(owner, "cls", None), target.attr, None)
        if isinstance(found, property) and found.fset is None:
            self._fail(target, f"{target.attr} cannot be assigned")

    def _call(self, node: ast.Call) -> Value:
        called = self._value(node.func)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            self._value(argument)
        if isinstance(called, Class):
            doc = called.cls.__init__.__doc__ or ""
            self._check_arguments(node, Function(f"{called.cls.__qualname__}.__init__", doc, True))
            return Instance(called.cls)
        if not isinstance(called, Function):
            return None
        if called.name.endswith(".__init__"):  # trt.ILogger.__init__(self) in a derived class
            return None
        signature = self._check_arguments(node, called)
        returned = getattr(self.checker.module, signature.returns, None) if signature else None
        return Instance(returned) if isinstance(returned, type) else None

    def _check_arguments(self, node: ast.Call, function: Function) -> Signature | None:
        keywords = [keyword.arg for keyword in node.keywords]
        if any(isinstance(argument, ast.Starred) for argument in node.args) or None in keywords:
            self._fail(node, f"{function.name} is called with * or **; name the arguments")
            return None
        count = len(node.args) + function.bound
        signatures = Signature.of(function)
        for signature in signatures:
            free = signature.names[count:]
            if signature.variadic or (
                count <= len(signature.names)
                and all(keyword in free for keyword in keywords)
                and count + len(keywords) >= signature.required
            ):
                return signature
        shown = " or ".join(f"({', '.join(signature.names)})" for signature in signatures) or "no known arguments"
        self._fail(node, f"{function.name} takes {shown}, not {len(node.args)} arguments and {keywords}")
        return None

    def _fail(self, node: ast.AST, problem: str) -> None:
        self.checker.problems.append(f"{self.file}:{node.lineno}: {problem}")  # type: ignore[attr-defined]


def main() -> None:
    checker = Checker(importlib.import_module(sys.argv[1]))
    for file in map(Path, sys.argv[2:]):
        checker.foreign = frozenset(FOREIGN.get(file.parent.name, ()))
        checker.check(file.read_text(), file.name)
    print(json.dumps({"uses": sorted(checker.uses), "problems": sorted(set(checker.problems))}))


if __name__ == "__main__":
    main()
