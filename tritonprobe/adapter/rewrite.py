"""Rewrites of two functions of Triton's, each with a full self-check, `guard` and `counting_binder`; and `wrapped`.

A wrapper costs 0.7 to 1.2 us a launch (docs/measurements/overhead.json), since it repacks ``*args, **kwargs``. A
statement inside the function costs a few nanoseconds. So the function's own source is compiled again with one
statement added, and used only if nothing else changed; otherwise `RewriteError` says why, and the caller falls back
to a wrapper or a hook.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import functools
import linecache
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

BINDER_FILE = "<tritonprobe binder>"
CELLS = "_tritonprobe_cells"
COUNT = "_tritonprobe_count"
MISS = "_tritonprobe_miss"
TYPES = "_tritonprobe_types"
PLAIN_TYPES = frozenset((int, str, bool, type(None)))
"""Of arguments that cells are found by. An equal number of another type is another class of argument to Triton."""
_KEYS = PLAIN_TYPES - {bool}
MANY, GROUP = 28, 20
"""CPython builds a list of the arguments first where there are more than 30, and keeps tuples of up to 20 for reuse."""
_FUTURE = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})


class RewriteError(Exception):
    """The function is not what the rewrite knows; it was left alone."""


def guard(
    function: types.FunctionType,
    *,
    raised: Callable[[Any], None],
    ended: Callable[[Any], None],
    watch: list[Any],
    prelude: str = "",
    names: dict[str, Any] | None = None,
) -> types.FunctionType:
    """`function` (a method) with its body inside ``try``: free while nothing happens.

    ``raised(self)`` is called while an exception passes through, ``ended(self)`` on the way out whenever the list
    `watch` is not empty. `prelude` is a statement put first, `names` what it refers to. Signature, defaults, names,
    line numbers and the original body stay as they were: a traceback shows Triton's own lines, and for what we raise
    the function's first one.
    """
    if not isinstance(function, types.FunctionType) or function.__closure__:
        raise RewriteError(f"{function!r} is not a plain function")
    if getattr(function, "__wrapped__", None) is not None:
        raise RewriteError(f"{function.__qualname__} was wrapped by somebody")
    extra = {"_tritonprobe_raised": raised, "_tritonprobe_ended": ended, "_tritonprobe_watch": watch, **(names or {})}
    code = _guarded_code(function.__code__, function.__code__.co_filename, function.__qualname__, prelude, tuple(extra))
    space: dict[str, Any] = {}
    builtins.exec(code, function.__globals__, space)
    new: types.FunctionType = space["_make"](**extra)
    _check_interface(function, new)
    if hasattr(function.__code__, "co_qualname"):
        new.__code__ = new.__code__.replace(co_qualname=function.__code__.co_qualname)
    _copy_face(function, new)
    return new


@functools.lru_cache(maxsize=64)  # parsing Triton's files is most of what it takes to switch the probe on again
def _guarded_code(
    code: types.CodeType, filename: str, qualname: str, prelude: str, extra: tuple[str, ...]
) -> types.CodeType:
    """A module's code that defines ``_make(*extra)``, which returns the guarded function. `code` knows no closure."""
    inner = _source_of(code, filename, qualname)
    used = {node.id for node in ast.walk(inner) if isinstance(node, ast.Name)}
    if used & set(extra):
        raise RewriteError(f"{qualname} already uses {sorted(used & set(extra))}")
    first = inner.args.args[0].arg
    shell = ast.parse(
        textwrap.dedent(f"""
        try:
            pass
        except BaseException:
            _tritonprobe_raised({first})
            raise
        finally:
            if _tritonprobe_watch:
                _tritonprobe_ended({first})
        """)
    ).body[0]
    assert isinstance(shell, ast.Try)
    ours = [*ast.parse(prelude).body, shell]
    for statement in ours:
        for node in ast.walk(statement):
            _place_at(node, inner)
    shell.body = inner.body
    inner.body = ours
    # A function around it makes the names above its closure, so that the module's globals stay untouched.
    maker = ast.parse(f"def _make({', '.join(extra)}): pass").body[0]
    assert isinstance(maker, ast.FunctionDef)
    maker.body = [inner, ast.Return(ast.Name(inner.name, ast.Load()))]
    module = ast.fix_missing_locations(ast.Module([maker], []))
    flags = code.co_flags & _FUTURE  # annotations stay text where Triton's module says so
    return compile(module, filename, "exec", flags=flags, dont_inherit=True)


def _place_at(node: ast.AST, function: ast.FunctionDef) -> None:
    """Gives a node of ours the place of the function's ``def``: no line of Triton's says what it does."""
    if isinstance(node, (ast.stmt, ast.expr, ast.excepthandler)):
        node.lineno = node.end_lineno = function.lineno
        node.col_offset, node.end_col_offset = function.col_offset, function.col_offset + len("def")


def wrapped(
    function: Callable[..., Any],
    *,
    raised: Callable[[Any], None],
    ended: Callable[[Any], None],
    watch: list[Any],
    first: Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[Any] | None] | None = None,
) -> types.FunctionType:
    """What does as `guard` where that refuses, as a wrapper of its own, and dearer by about 0.6 us a call.

    ``first(self, args, kwargs)`` is called before; a tuple of one that it returns is the answer in the place of the
    call's. All of these functions share one code, whose local ``self`` is the object.
    """

    @functools.wraps(function)
    def run(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        answer = None if first is None else first(self, args, kwargs)
        if answer is not None:
            return answer[0]
        try:
            return function(self, *args, **kwargs)
        except BaseException:
            raised(self)
            raise
        finally:
            if watch:
                ended(self)

    assert isinstance(run, types.FunctionType)
    return run


def counting_binder(
    generate: Callable[..., Any],
    arguments: tuple[Any, ...],
    dims: tuple[str, ...],
    cells: dict[Any, Any],
    miss: Callable[[Any], None],
    count: Callable[..., None] | None = None,
) -> tuple[types.FunctionType, types.FunctionType]:
    """Triton's binder for one kernel, plain and with ``cells[dim][dim]...[0] += 1.0`` as its first statement.

    Dicts in dicts, since a tuple as a key costs twice their time; and 1.0, since a float cell plus 1 has to convert.
    The types are asked for before: 5.0 would find the cell of 5, and True that of 1. With `count` the statement is
    ``count(cells, dim, dim, ...)``, or with many of them ``count(cells, (dim, dim, ...), ...)``, which must do the same
    or raise (`launch_count.c`).

    `generate` is Triton's ``create_function_from_signature``, `arguments` what it takes. It builds the binder by
    ``exec``; a private copy of it runs here with an ``exec`` that keeps the text. Any failing lookup goes to
    ``miss(key)``. The new binder's globals hold `CELLS`, which may be swapped for another dict while the kernel runs.
    """
    got: list[tuple[str, dict[str, Any]]] = []

    def keep(source: str, namespace: dict[str, Any]) -> None:
        got.append((source, namespace))
        builtins.exec(source, namespace)

    if not isinstance(generate, types.FunctionType) or generate.__closure__:
        raise RewriteError("the binder's generator is not Triton's own function")
    private = types.FunctionType(generate.__code__, {**generate.__globals__, "exec": keep}, generate.__name__)
    plain: types.FunctionType = private(*arguments)
    if len(got) != 1:
        raise RewriteError(f"the binder was built by {len(got)} calls of exec, not one")
    source, namespace = got[0]
    tree = ast.parse(source)
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        raise RewriteError("the binder is not one function")
    inner = tree.body[0]
    a = inner.args
    params = {p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)}
    taken = params | {p.arg for p in (a.vararg, a.kwarg) if p} | set(namespace)
    if namespace.get(inner.name) is not plain:
        raise RewriteError("the generator returned something other than the function it built")
    if not set(dims) <= params:
        raise RewriteError(f"{sorted(set(dims) - params)} are no parameters of the binder")
    if {CELLS, COUNT, MISS, TYPES, "Exception"} & taken:
        raise RewriteError("the binder already uses names of ours, or hides Exception")
    key = "None" if not dims else dims[0] if len(dims) == 1 else f"({', '.join(dims)})"
    body = [ast.dump(statement) for statement in inner.body]
    if count is None:
        place = "".join(f"[{dim}]" for dim in dims or ("None",))
        plain_keys = " and ".join(f"{dim}.__class__ in {TYPES}" for dim in dims) or "True"
        add = f"if {plain_keys}: {CELLS}{place}[0] += 1.0\n    else: {MISS}({key})"
    else:
        keys = dims or ("None",)
        if len(keys) > MANY:
            keys = tuple(f"({', '.join(keys[i : i + GROUP])},)" for i in range(0, len(keys), GROUP))
        add = f"{COUNT}({', '.join((CELLS, *keys))})"
    inner.body[:0] = ast.parse(f"try:\n    {add}\nexcept Exception:\n    {MISS}({key})").body
    space = {**namespace, CELLS: cells, COUNT: count, MISS: miss, TYPES: _KEYS}
    builtins.exec(compile(ast.fix_missing_locations(tree), BINDER_FILE, "exec", dont_inherit=True), space)
    new = space[inner.name]
    _check_interface(plain, new)
    if [ast.dump(statement) for statement in inner.body[1:]] != body:
        raise RewriteError("the binder's body changed")
    if not all(p is q for p, q in zip(plain.__defaults__ or (), new.__defaults__ or (), strict=True)):
        raise RewriteError("the binder's defaults changed")
    return plain, new


def _source_of(code: types.CodeType, filename: str, qualname: str) -> ast.FunctionDef:
    """The tree of the function with this code, once it is proven that compiling its file gives that very bytecode.

    The whole file is compiled, not the function alone: since Python 3.11 the bytecode of ``time.time()`` depends on the
    imports at the top.
    """
    linecache.checkcache(filename)
    lines = linecache.getlines(filename)
    if not lines:
        raise RewriteError(f"no source for {qualname}")
    tree = ast.parse("".join(lines))
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name and node.lineno == code.co_firstlineno
    ]
    if len(found) != 1 or found[0].decorator_list or not found[0].args.args:
        raise RewriteError(f"{qualname} is not one undecorated method")
    again = compile(tree, filename, "exec", dont_inherit=True)
    if not any(_same_code(c, code) for c in _codes(again) if c.co_firstlineno == code.co_firstlineno):
        raise RewriteError(f"the source of {qualname} on disk is not what runs")
    return found[0]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def _same_code(a: types.CodeType, b: types.CodeType) -> bool:
    if a.co_code != b.co_code or a.co_names != b.co_names or a.co_varnames != b.co_varnames:
        return False
    if len(a.co_consts) != len(b.co_consts):
        return False
    return all(
        _same_code(x, y) if isinstance(x, types.CodeType) and isinstance(y, types.CodeType) else x == y
        for x, y in zip(a.co_consts, b.co_consts, strict=True)
    )


def _check_interface(old: types.FunctionType, new: types.FunctionType) -> None:
    a, b = old.__code__, new.__code__
    nested = 0x10  # CO_NESTED: ours lives in a maker
    same = (
        (a.co_argcount, a.co_posonlyargcount, a.co_kwonlyargcount)
        == (b.co_argcount, b.co_posonlyargcount, b.co_kwonlyargcount)
        and a.co_flags & 0xFFFF & ~nested == b.co_flags & 0xFFFF & ~nested
        and set(a.co_varnames) <= set(b.co_varnames)
        and a.co_varnames[: a.co_argcount + a.co_kwonlyargcount] == b.co_varnames[: a.co_argcount + a.co_kwonlyargcount]
    )
    if not same:
        raise RewriteError(f"the interface of {old.__qualname__} changed")


def _copy_face(old: types.FunctionType, new: types.FunctionType) -> None:
    new.__defaults__ = old.__defaults__
    new.__kwdefaults__ = old.__kwdefaults__
    new.__name__, new.__qualname__, new.__module__ = old.__name__, old.__qualname__, old.__module__
    new.__doc__ = old.__doc__
    new.__annotations__ = dict(old.__annotations__)
    new.__dict__.update(old.__dict__)
