"""`jaxdata.select`: a view of the documents of which an expression holds, or by their weight.

Expressions are over fields of documents, as in `--where "lang == 'en' and score > 0.7"`. Python's
parser reads them, its `eval` is never called: each of the few forms that are known here becomes a
call of Arrow's compute functions, on the values of many documents at once. A comparison with a
missing value is neither true nor false, as in SQL.
"""

import ast
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache, partial, reduce
from hashlib import sha256
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from jaxdata.base.errors import InputError, nearest
from jaxdata.base.numbers import validated
from jaxdata.base.progress import Advance
from jaxdata.base.ragged import AnyArray, Bools, Ints
from jaxdata.base.seeds import MULTIPLIER, as_uniform, derive, finalized
from jaxdata.dataset.manifest import ViewEntry
from jaxdata.dataset.opening import ConvertedDocuments, open_converted, source_names
from jaxdata.dataset.views.kept_documents import KeptDocuments
from jaxdata.dataset.views.source_view import SourceView, content_of, stacked
from jaxdata.dataset.views.writing import check_name, write_views

MOST = 10_000
"""largest weight: a longer list is a mistake"""
REASONS = ("where", "where is unknown", "weight")
"""why a document is dropped: it is false, a field is missing, or it got no copy"""
_AT_ONCE = 2**16  # documents


@validated
def select(
    dataset: str | os.PathLike[str],
    name: str,
    *,
    where: str | None = None,
    weight: str | None = None,
    sources: Sequence[str] | None = None,
    split: str = "train",
    fields: Mapping[str, ArrayLike] = MappingProxyType({}),
    documents: str | None = None,
    seed: int = 0,
    progress: Advance = lambda _done, _total: None,
) -> dict[str, ViewEntry]:
    """Make a view of the documents that an expression chooses, and list them by their weights.

    Nothing is copied: `dataset.source(split, source, documents=name)` reads the documents that the
    view lists, and `documents: NAME` in a config trains on them.

    Args:
        dataset: a folder or URL of a dataset.
        name: of the view; one of the same name is replaced.
        where: which documents to keep, such as `"lang == 'en' and score > 0.7"`, over the fields
            that the conversion kept (`--keep`), those of `fields`, and `tokens`, `document`,
            `source` and `file`. A document of which it is unknown, as a field is missing, is
            dropped.
        weight: an expression for the times that each document is listed on average, as 2.3: it is
            listed 2 or 3 times, the same in every epoch. Below 1 it may be dropped.
        sources: their names; None for all of the split.
        split: their split.
        fields: more fields, of one source: a number or flag for each document, in order.
        documents: a view to choose from; None for all documents. What it dropped stays dropped.
        seed: of the chances of weights.
        progress: called with (documents done, all).

    Returns:
        The entries of the view by source, `"<split>/<source>"`; `.account` says what it keeps.

    Raises:
        InputError: an expression, a field, a file or a name is wrong.
        DatasetError: there is no dataset, it is damaged, or another process writes these sources.

    >>> import tempfile
    >>> from jaxdata.testing import write_dataset
    >>> folder = tempfile.mkdtemp()
    >>> dataset = write_dataset(folder, {"train/web": [[1, 2, 0], [3, 0], [4, 5, 6, 0]]})
    >>> made = select(folder, "long", where="tokens > 2")
    >>> made["train/web"].account.kept.documents
    2
    """
    if where is None and weight is None:
        raise InputError("give where or weight: what to keep, or how often")
    check_name(name)
    opened = open_converted(dataset, ", which can have no views")
    chosen = Expression(where, "--where") if where is not None else None
    weighed = Expression(weight, "--weight") if weight is not None else None
    more = {name: np.asarray(values) for name, values in fields.items()}
    read: list[Any] = [
        opened.source(split, source, documents=documents)
        for source in sources or source_names(opened, split)
    ]
    known = [DocumentFields(docs.base, more) for docs in read]
    for each in known:
        for expression in filter(None, (chosen, weighed)):
            each.check(expression.names, expression.option)
    views: dict[str, SourceView] = {}
    done, total = 0, sum(len(each.docs) for each in known)
    for docs, each in zip(read, known, strict=True):
        lower = SourceView(documents=len(each.docs))
        if isinstance(docs, KeptDocuments):
            lower = content_of(docs)

        def advance(part: int, before: int = done) -> None:
            progress(before + part, total)

        upper = _view(each, chosen, weighed, lower.dropped, seed, advance)
        views[docs.name], done = stacked(lower, upper), done + len(each.docs)
    parameters: dict[str, Any] = {"command": "select", "where": where, "weight": weight}
    parameters |= {"documents": documents, "seed": seed if weight else None}
    parameters["fields"] = {name: sha256(more[name].tobytes()).hexdigest() for name in more} or None
    return write_views(
        opened.store,
        name,
        views,
        parameters={key: value for key, value in parameters.items() if value is not None},
        made_of={each.name: each.base.fingerprint for each in read},
    )


_MOST_CHARACTERS = 10_000
_FORMS = (
    "names of fields, numbers, 'texts', comparisons, in, is None, and, or, not, + - * /, "
    "len(), lower(), upper(), startswith() and endswith()"
)
_BOOL, _FLOAT, _TEXT = pa.bool_(), pa.float64(), pa.string()
Values = Any
"""an Arrow array with a value for each document, or a scalar for all"""


def _and(*values: Values) -> Values:
    return reduce(pc.and_kleene, values)


def _or(*values: Values) -> Values:
    return reduce(pc.or_kleene, values, pa.scalar(False))


def _divide(left: Values, right: Values) -> Values:
    if pa.types.is_integer(left.type):
        left = left.cast(_FLOAT)  # Arrow divides integers without their remainder
    return pc.divide(left, right)


_OPERATORS: dict[type[ast.AST], tuple[Callable[..., Values], Any]] = {
    ast.And: (_and, _BOOL),
    ast.Or: (_or, _BOOL),
    ast.Not: (pc.invert, _BOOL),
    ast.USub: (pc.negate, _FLOAT),
    ast.Add: (pc.add, _FLOAT),
    ast.Sub: (pc.subtract, _FLOAT),
    ast.Mult: (pc.multiply, _FLOAT),
    ast.Div: (_divide, _FLOAT),
    ast.Eq: (pc.equal, _BOOL),
    ast.NotEq: (pc.not_equal, _BOOL),
    ast.Lt: (pc.less, _BOOL),
    ast.LtE: (pc.less_equal, _BOOL),
    ast.Gt: (pc.greater, _BOOL),
    ast.GtE: (pc.greater_equal, _BOOL),
}
"""operator -> (function, type of what it returns where all is missing)"""
_LOGIC = (_and, _or, pc.invert)
_METHODS = {"lower": (pc.utf8_lower, _TEXT), "upper": (pc.utf8_upper, _TEXT)}
_TESTS = {"startswith": pc.starts_with, "endswith": pc.ends_with}


class _Named(dict[str, Any]):
    """Fields without values, which remember their names."""

    def __missing__(self, name: str) -> Any:
        return self.setdefault(name, pa.nulls(0))


class Expression:
    """An expression, checked when it is made.

    Args:
        text: what the user wrote.
        option: what messages call it, like `--where`.

    Raises:
        InputError: it is not an expression of the known forms.

    >>> found = Expression("lang == 'en' and score > 0.7", "where")
    >>> sorted(found.names)
    ['lang', 'score']
    >>> fields = {"lang": pa.array(["en", "de", None]), "score": pa.array([0.9, 0.9, 0.8])}
    >>> found.of(fields, 3).to_pylist()
    [True, False, None]
    """

    def __init__(self, text: str, option: str) -> None:
        self.text, self.option = text, option
        found = _Named()
        try:
            if len(text) > _MOST_CHARACTERS:
                raise ValueError(f"it has more than {_MOST_CHARACTERS:,} characters")
            self._tree = ast.parse(text.strip(), mode="eval").body
            self.of(found, 0)  # refuses unknown forms
        except InputError:
            raise
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            cause = getattr(error, "msg", None) or error or type(error).__name__
            raise InputError(
                f"{option} {text[:200]!r} is no expression ({cause}): expected one like "
                "\"lang == 'en' and score > 0.7\""
            ) from None
        self.names = set(found)

    def of(self, fields: Mapping[str, Any], documents: int) -> Any:
        """The value for each of some documents, an Arrow array.

        Args:
            fields: the values of each of `names`, Arrow arrays of (documents,).
            documents: how many there are.

        Raises:
            InputError: a form is unknown, or does not fit the types of its values.
        """
        found = self._value(self._tree, fields)
        if isinstance(found, pa.Scalar):
            return pa.array([found.as_py()] * documents, found.type)
        return found

    def truth(self, fields: Mapping[str, Any], documents: int) -> Any:
        """Of which documents it holds, an Arrow array of flags: null where it is unknown."""
        found = self.of(fields, documents)
        if not (pa.types.is_boolean(found.type) or pa.types.is_null(found.type)):
            raise InputError(
                f"{self.option} {self.text!r} is of type {found.type}: expected true or false, "
                "such as score > 0.7"
            )
        return found.cast(_BOOL)

    def _value(self, tree: ast.AST, fields: Mapping[str, Any]) -> Values:
        """The value of a part; of values that are all missing, that is missing, too."""
        if (name := _name_of(tree)) is not None:
            return fields[name]
        try:
            if isinstance(tree, ast.Constant) and isinstance(tree.value, str | int | float | None):
                return pa.scalar(tree.value)
            function, result, parts = _call_of(tree)
        except (pa.ArrowException, OverflowError, LookupError):
            raise InputError(
                f"{self.option}: {ast.unparse(tree)!r} cannot be computed; an expression may have "
                f"{_FORMS}"
            ) from None
        values = [self._value(part, fields) for part in parts]
        if function in _LOGIC:
            values = [each.cast(_BOOL) if pa.types.is_null(each.type) else each for each in values]
        elif function is not pc.is_null and any(pa.types.is_null(each.type) for each in values):
            arrays = [len(each) for each in values if isinstance(each, pa.Array)]
            return pa.nulls(arrays[0], result) if arrays else pa.scalar(None, result)
        try:
            return function(*values)
        except (pa.ArrowException, TypeError, ValueError):
            types = " and ".join(str(each.type) for each in values)
            raise InputError(
                f"{self.option}: {ast.unparse(tree)!r} cannot be computed of values of type {types}"
            ) from None


def _call_of(tree: ast.AST) -> tuple[Callable[..., Values], Any, Sequence[ast.expr]]:
    """A part of an expression as a function, the type of its result, and the function's arguments.

    Raises LookupError for a form that is not known.
    """
    match tree:
        case ast.BoolOp(op, values):
            return *_OPERATORS[type(op)], values
        case ast.UnaryOp(op, value):
            return *_OPERATORS[type(op)], [value]
        case ast.BinOp(left, op, right):
            return *_OPERATORS[type(op)], [left, right]
        case ast.Compare(left, [ast.Is()], [ast.Constant(None)]):
            return pc.is_null, _BOOL, [left]
        case ast.Compare(left, [ast.IsNot()], [ast.Constant(None) as none]):
            return pc.invert, _BOOL, [ast.Compare(left, [ast.Is()], [none])]
        case ast.Compare(left, [ast.NotIn()], [right]):
            return pc.invert, _BOOL, [ast.Compare(left, [ast.In()], [right])]
        case ast.Compare(left, [ast.In()], [ast.Tuple(each) | ast.List(each) | ast.Set(each)]):
            return _or, _BOOL, [ast.Compare(left, [ast.Eq()], [one]) for one in each]
        case ast.Compare(ast.Constant(str() as text), [ast.In()], [right]):
            return lambda of: pc.match_substring(of, text), _BOOL, [right]
        case ast.Compare(left, [op], [right]):
            return *_OPERATORS[type(op)], [left, right]
        case ast.Compare(left, ops, values):
            pairs = zip([left, *values], ops, values, strict=False)
            return _and, _BOOL, [ast.Compare(a, [op], [b]) for a, op, b in pairs]
        case ast.Call(ast.Name("len"), [value], []):
            return pc.utf8_length, pa.int64(), [value]
        case ast.Call(ast.Attribute(value, name), [], []):
            return *_METHODS[name], [value]
        case ast.Call(ast.Attribute(value, name), [ast.Constant(str() as text)], []):
            test = _TESTS[name]
            return lambda of: test(of, text), _BOOL, [value]
    raise LookupError


def _name_of(tree: ast.AST) -> str | None:
    """The field that a part of an expression is: `lang`, `meta.lang`, `field("x-y")`."""
    match tree:
        case ast.Name(name) | ast.Call(ast.Name("field"), [ast.Constant(str() as name)], []):
            return name
        case ast.Attribute(value, attribute):
            above = _name_of(value)
            return above and f"{above}.{attribute}"
    return None


_BUILT_IN = ("tokens", "document", "source", "file")
"""Fields that every document has: tokens with EOD, number, name of the source, input file."""


class DocumentFields:
    """The fields of the documents of one source.

    Args:
        docs: the source.
        more: further fields, a value for each document.

    Raises:
        InputError: these are not of as many documents.
    """

    def __init__(
        self, docs: ConvertedDocuments, more: Mapping[str, AnyArray] = MappingProxyType({})
    ) -> None:
        self.docs, self._more = docs, more
        for name, values in more.items():
            if values.shape != (len(docs),) or values.dtype.kind not in "biuf":
                raise InputError(
                    f"fields: {name!r} is of shape {values.shape} and {values.dtype}, {docs.name} "
                    f"has {len(docs):,} documents: expected a number for each, of one source"
                )
        self._kept: Sequence[str] = docs.entry.parameters.get("keep") or ()

    def check(self, names: Iterable[str], option: str) -> None:
        """Raise InputError if a name is of no field."""
        known = [*self._more, *self._kept, *_BUILT_IN]
        for name in sorted(names):
            if name not in known and name.partition(".")[0] not in self._kept:
                raise InputError(
                    f"{option} names the field {name!r}, which {self.docs.name} does not have: it "
                    f"has {', '.join(known)}{nearest(name, known)}; jaxdata convert --keep keeps "
                    "more"
                )

    def parts(self, names: Iterable[str]) -> Iterator[tuple[slice, dict[str, Any]]]:
        """Some of the documents at a time, and the values of some fields for them.

        Raises:
            InputError: the values of one are of different types.
            DatasetError: what was kept is damaged.
        """
        for first, stop in pairwise([*range(0, len(self.docs), _AT_ONCE), len(self.docs)]):
            records = cache(partial(self.docs.index.kept, first, stop))  # if asked for
            here = slice(first, stop)
            yield here, {name: self._values(name, here, records) for name in names}

    def _values(self, name: str, here: slice, records: Callable[[], list[Any]]) -> Any:
        index = self.docs.index
        if name in self._more:
            return pa.array(self._more[name][here])
        if name in self._kept or name.partition(".")[0] in self._kept:
            try:
                return pa.array([_looked_up(record, name) for record in records()])
            except (pa.ArrowException, OverflowError, TypeError, AttributeError) as error:
                raise InputError(
                    f"field {name!r} of {self.docs.name} has values of different types in "
                    f"documents {here.start:,} to {here.stop - 1:,} ({error}): expected numbers, "
                    "texts or flags, and nothing else beside null; before a dot, objects"
                ) from None
        if name == "tokens":
            return pa.array(index.lengths[here].astype(np.int64))
        if name == "document":
            return pa.array(np.arange(here.start, here.stop))
        if name == "source":
            return pa.array([self.docs.name.partition("/")[2]] * (here.stop - here.start))
        try:
            return pa.array(index.entry.inputs).take(pa.array(index.column("origin_file")[here]))
        except pa.ArrowIndexError:
            raise index.other() from None


def _looked_up(record: Mapping[str, Any], name: str) -> Any:
    """A field of a record; a name with dots goes into objects (AttributeError if it is none)."""
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        value = None if value is None else value.get(part)
    return value


def documents_where(docs: ConvertedDocuments, where: Expression) -> Ints:
    """The numbers of documents of which an expression holds."""
    fields, found = DocumentFields(docs), [np.empty(0, np.int64)]
    fields.check(where.names, where.option)
    for here, values in fields.parts(where.names):
        holds = where.truth(values, here.stop - here.start).fill_null(False)
        found.append(here.start + np.flatnonzero(holds))
    return np.concatenate(found)


def documents_with(docs: ConvertedDocuments, urls: Set[str]) -> Ints:
    """The numbers of documents whose kept `url` is one of some."""
    fields, found = DocumentFields(docs), list[int]()
    fields.check(["url"], "--urls")
    for here, values in fields.parts(["url"]):
        given = enumerate(values["url"].to_pylist(), here.start)
        found += [number for number, url in given if str(url) in urls]
    return np.array(found, np.int64)


def _view(
    fields: DocumentFields,
    where: Expression | None,
    weight: Expression | None,
    below: Ints,
    seed: int,
    progress: Callable[[int], None],
) -> SourceView:
    """The view of a source; what is dropped `below` needs no weight."""
    count = len(fields.docs)
    names = {name for each in (where, weight) if each for name in each.names}
    reason = np.zeros(count, np.uint8)  # of those that are dropped, 1 + its number
    times = np.ones(count, np.uint16)
    wanted = np.ones(count, bool)
    wanted[below] = False
    for here, values in fields.parts(names):
        if where is not None:
            known = where.truth(values, here.stop - here.start)
            reason[here] = np.where(known.is_null(), 2, ~np.asarray(known.fill_null(False)))
            wanted[here] &= reason[here] == 0
        if weight is not None:
            times[here] = _copies(weight, values, fields.docs.name, here, wanted[here], seed)
            reason[here][wanted[here] & (times[here] == 0)] = 3
        progress(here.stop)
    dropped = np.flatnonzero(reason)
    return SourceView(
        documents=count,
        dropped=dropped,
        reason=reason[dropped] - np.uint8(1),
        reasons=REASONS,
        copies=None if weight is None else times,
    )


def _copies(
    weight: Expression, values: Mapping[str, Any], source: str, here: slice, kept: Bools, seed: int
) -> Ints:
    """Times that documents are listed, on average their weights; 1 for those that are not kept.

    The whole part of the weight, and one more with the probability of the rest, which a hash of the
    seed, the source and the document decides. So it is the same in every epoch, and does not depend
    on other documents.
    """
    found = weight.of(values, here.stop - here.start)
    if not (pa.types.is_integer(found.type) or pa.types.is_floating(found.type)):
        raise InputError(f"--weight {weight.text!r} is of type {found.type}: expected a number")
    weights = found.cast(pa.float64()).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(kept & ~((weights >= 0) & (weights <= MOST)))
    if len(wrong):
        value, document = found[int(wrong[0])].as_py(), here.start + int(wrong[0])
        raise InputError(
            f"--weight {weight.text!r} is {'unknown' if value is None else value} for document "
            f"{document:,} of {source}: expected 0 to {MOST:,}; --where can leave out documents "
            "without a weight"
        )
    weights = np.where(kept, weights, 1)
    whole = np.floor(weights)
    hashed = (np.arange(here.start, here.stop, dtype=np.uint64) + np.uint64(1)) * MULTIPLIER
    chance = as_uniform(finalized(hashed + np.uint64(derive(seed, "weight", source))))
    return (whole + (chance < weights - whole)).astype(np.int64)
