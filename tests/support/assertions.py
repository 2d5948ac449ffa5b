"""Which tests are sure to assert something: read from their source, without running them."""

import ast
import importlib
from functools import cached_property
from pathlib import Path

SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
TESTS = Path(__file__).resolve().parents[1]
KEEP_LENGTH = {"enumerate", "list", "tuple", "set", "frozenset", "sorted", "reversed", "dict", "permutations", "cycle"}
VIEWS = {"items", "keys", "values", "splitlines"}  # splitlines: of a text that is not empty


class Module:
    """One file of tests: its functions, and what its names stand for."""

    def __init__(self, file: Path, tree: ast.Module | None = None):
        self.file = file
        self.tree = ast.parse(file.read_text(encoding="utf-8")) if tree is None else tree

    @cached_property
    def scopes(self) -> list[ast.Module | ast.ClassDef]:
        return [self.tree, *(node for node in self.tree.body if isinstance(node, ast.ClassDef))]

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """Functions and methods; of those with one name, the last."""
        return {node.name: node for scope in self.scopes for node in scope.body if isinstance(node, ast.FunctionDef)}

    @cached_property
    def tests(self) -> list[tuple[str, ast.FunctionDef]]:
        functions = (node for scope in self.scopes for node in scope.body if isinstance(node, ast.FunctionDef))
        return [(node.name, node) for node in functions if node.name.startswith("test")]

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """Names that the module assigns once at its top."""
        return assigned(self.tree)

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """Name here: (module, name there) of every ``from module import name``, wherever it stands."""
        return {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    @cached_property
    def imports(self) -> list[str]:
        """Every module that is imported, and every name from one as ``module.name``."""
        found = [alias.name for node in ast.walk(self.tree) if isinstance(node, ast.Import) for alias in node.names]
        return found + [part for there in self.imported.values() for part in (there[0], ".".join(there))]


def assigned(scope: ast.AST) -> dict[str, ast.expr]:
    """Names that get one value in this scope, by one plain assignment."""
    values, times = {}, {}
    for node in own_nodes(scope):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
                pairs = list(zip(target.elts, value.elts, strict=True))
            values |= {name.id: value for name, value in pairs if isinstance(name, ast.Name)}
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            times[node.id] = times.get(node.id, 0) + 1
    return {name: value for name, value in values.items() if times[name] == 1}


def own_nodes(scope: ast.AST):
    """Nodes of a scope, without those of the functions and classes inside it."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, SCOPES):
            waiting += ast.iter_child_nodes(node)


class Reader:
    """Reads one function of a module."""

    def __init__(self, module: Module, function: ast.FunctionDef, reading: frozenset[str] = frozenset()):
        self.module, self.function = module, function
        self.reading = reading | {
            function.name
        }  # functions on the way here: one that calls itself asserts nothing by that
        self.local = assigned(function)
        self.inner = {node.name: node for node in own_nodes(function) if isinstance(node, ast.FunctionDef)}
        stored = (
            node.id for node in own_nodes(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        self.own_names = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)} | set(
            stored
        )

    def asserts(self) -> bool:
        """Whether a run that passes must have passed an assertion that cannot be empty."""
        return self.block(self.function.body)

    def block(self, statements: list[ast.stmt]) -> bool:
        return any(self.statement(statement) for statement in statements)

    def statement(self, node: ast.stmt) -> bool:
        match node:
            case ast.Assert(test=test):
                return self.holds(test)
            case ast.For(iter=iterable, body=body):
                return self.filled(iterable) and self.block(body)
            case ast.While(test=ast.Constant(value=True), body=body):
                return self.block(body)
            case ast.With(items=items, body=body):
                return any(self.called(item.context_expr) for item in items) or self.block(body)
            case ast.If(body=body, orelse=orelse):
                return self.block(body) and self.block(orelse)
            case ast.Try(body=body, orelse=orelse, finalbody=finalbody):
                return self.block(body) or self.block(orelse) or self.block(finalbody)
            case ast.Expr(value=value) | ast.Assign(value=value) | ast.Return(value=ast.expr() as value):
                return self.called(value)
        return False

    def holds(self, test: ast.expr) -> bool:
        """Whether an asserted expression looks at something: ``all`` and ``not any`` of nothing hold too."""
        match test:
            case ast.BoolOp(op=ast.And(), values=values):
                return any(self.holds(value) for value in values)
            case (
                ast.Call(func=ast.Name(id="all"), args=[over])
                | ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=ast.Name(id="any"), args=[over]))
            ):
                return self.filled(over)
        return True

    def called(self, value: ast.expr) -> bool:
        """Whether a call in the expression is one of a function that asserts, or of a library's assertion."""
        return any(self.call(node.func) for node in ast.walk(value) if isinstance(node, ast.Call))

    def call(self, function: ast.expr) -> bool:
        match function:
            case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name):
                return self.helper(name)
            case ast.Attribute(value=ast.Name(id="pytest"), attr=name):
                return name in ("raises", "warns", "fail")
            case ast.Attribute(attr=name):
                return name.startswith("assert_")
        return False

    def helper(self, name: str) -> bool:
        """Whether a function of this test, of its module or of ``support`` asserts."""
        if name in self.reading:
            return False
        if name in self.inner:
            return Reader(self.module, self.inner[name], self.reading).asserts()
        if name in self.module.functions:
            return Reader(self.module, self.module.functions[name], self.reading).asserts()
        module, there = self.module.imported.get(name, ("", name))
        if module.startswith(("support.", "reference.")):
            other = Module(TESTS / f"{module.replace('.', '/')}.py")
            return there in other.functions and Reader(other, other.functions[there], self.reading).asserts()
        return there.startswith("assert_")

    def filled(self, iterable: ast.expr | None) -> bool:
        """Whether it is known to have something in it."""
        match iterable:
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return any(not isinstance(part, ast.Starred) or self.filled(part.value) for part in parts)
            case ast.Dict(keys=keys, values=values):
                return any(key is not None or self.filled(value) for key, value in zip(keys, values, strict=True))
            case ast.Constant(value=str() | bytes() as text):
                return len(text) > 0
            case ast.Name(id=name):
                return self.named(name)
            case ast.BinOp(left=left, op=ast.Add() | ast.BitOr(), right=right):
                return self.filled(left) or self.filled(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return self.filled(left) and (self.number(right) or 0) > 0
            case (
                ast.GeneratorExp(generators=parts)
                | ast.ListComp(generators=parts)
                | ast.SetComp(generators=parts)
                | ast.DictComp(generators=parts)
            ):
                return all(self.filled(part.iter) and not part.ifs for part in parts)
            case ast.Call():
                return self.filled_call(iterable)
        return False

    def filled_call(self, call: ast.Call) -> bool:
        match call.func:
            case ast.Attribute(value=value, attr=name) if name in VIEWS:
                return self.filled(value)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                pass
            case _:
                return False
        if name == "range":
            ends = [self.number(argument) for argument in call.args]
            return None not in ends and len(range(*ends)) > 0
        if name == "zip":
            strict = any(keyword.arg == "strict" and keyword.value.value for keyword in call.keywords)
            return (any if strict else all)(self.filled(argument) for argument in call.args)
        if name == "product":
            return all(self.filled(argument) for argument in call.args)
        return name in KEEP_LENGTH and len(call.args) > 0 and self.filled(call.args[0])

    def named(self, name: str) -> bool:
        if name in self.own_names:
            return name in self.local and self.filled(self.local[name])
        if name in self.module.constants:
            return self.filled(self.module.constants[name])
        if name in self.module.imported:
            module, there = self.module.imported[name]
            try:
                return len(list(getattr(importlib.import_module(module), there))) > 0
            except (ImportError, AttributeError, TypeError):
                return False
        return False

    def number(self, expression: ast.expr) -> int | None:
        match expression:
            case ast.Constant(value=int() as number):
                return number
            case ast.Name(id=name) if name in self.local:
                return self.number(self.local[name])
            case ast.Name(id=name) if name not in self.own_names:
                if name in self.module.constants:
                    return self.number(self.module.constants[name])
                module, there = self.module.imported.get(name, ("", ""))
                number = getattr(importlib.import_module(module), there, None) if module else None
                return number if isinstance(number, int) else None
            case ast.Call(func=ast.Name(id="len"), args=[over]) if self.filled(over):
                return 1
            case ast.BinOp(left=left, op=ast.Mult() | ast.Add() as op, right=right):
                ends = self.number(left), self.number(right)
                return None if None in ends else ends[0] * ends[1] if isinstance(op, ast.Mult) else sum(ends)
        return None
