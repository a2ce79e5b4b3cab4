"""Objectives at load time: other inputs and targets of the same rows.

Each is a pure function of a row and its number, keyed by a seed: the same on every host, after any
resume, and other in each epoch. It changes rows before their layout, in numpy.

    jaxdata.Loader(rows, batch_size=8, objective={"fim": {"prefix": 5, "middle": 6, "suffix": 7}})
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_serializer

from jaxdata.base.errors import InputError, digest
from jaxdata.base.ragged import AnyArray, Bools, Floats, Ints, consecutive, expand
from jaxdata.base.seeds import derive, keyed_uniform
from jaxdata.base.settings import Settings
from jaxdata.dataset.documents import Documents
from jaxdata.rows.table import Batch

ROW = "row"
"""the array of a batch, (batch,), with the numbers of its rows"""
TokenId = Annotated[int, Field(ge=0, lt=2**31)] | Annotated[str, Field(min_length=1)]
"""an id; in a config also the text of a token"""
Share = Annotated[float, Field(ge=0, le=1)]


class Objective(Settings):
    """What a model learns from rows, other than their next tokens."""

    name: ClassVar[str]
    tokens_of: ClassVar[tuple[str, ...]] = ()
    """fields that are tokens"""
    takes_masks: ClassVar[bool] = False
    """whether documents may have loss masks of their own"""
    seed: int = Field(default=0, description="of what is drawn")

    @abstractmethod
    def __call__(self, batch: Batch) -> Batch:
        """The batch with other arrays; `row` has the numbers of its rows."""

    @model_serializer
    def _as_given(self) -> dict[str, Any]:
        """As a config has it."""
        return {self.name: dict(self)}

    def facts(self) -> dict[str, Any]:
        """What a state says of it; of many tokens their digest."""
        given = {
            name: digest(value)[:8] if isinstance(value, list) else value
            for name, value in dict(self).items()
        }
        return {"objective": {self.name: given}}

    def with_ids(self, id_of: Callable[[str], int | None]) -> Self:
        """The same with ids in place of texts; raises InputError for one that is no token."""

        def known(token: int | str) -> int:
            found = id_of(token) if isinstance(token, str) else token
            if found is None:
                raise InputError(
                    f"objective {self.name}: the tokenizer has no token {token!r}; add it when you "
                    "convert (--add-special), or name another by text or id"
                )
            return found

        ids = {}
        for name in self.tokens_of:
            one = getattr(self, name)
            ids[name] = [*map(known, one)] if type(one) is list else known(one)
        return self.model_copy(update=ids)

    def check(self, documents: Iterable[Documents]) -> None:
        """Raise InputError where it makes no sense of some documents, or of its own tokens."""
        for name in self.tokens_of:
            texts = [one for one in np.ravel(getattr(self, name)).tolist() if isinstance(one, str)]
            if texts:
                raise InputError(
                    f"objective {self.name}: {name}={texts[0]!r} is a text, which only a config "
                    "may have: give the id, tokenizer.token_id(…)"
                )
        masked = [each.name for each in documents if each.masked]
        if masked and not self.takes_masks:
            raise InputError(
                f"objective {self.name}: {masked[0]} has loss masks of its own (of prompts, or of "
                "repeats), which say what of its next tokens to learn: leave it out of the mixture"
            )

    def _draws(self, use: str, *numbers: AnyArray) -> Floats:
        return keyed_uniform(derive(self.seed, self.name, use), *numbers)


class NextTokens(Objective):
    """The next *k* tokens of each slot, for heads that predict several (DeepSeek-V3, 2.2).

    `mtp_targets` (batch, seq_len, k) int32 and `mtp_mask`, bool: at `[..., 0]` the targets and the
    loss mask of the row; further on those of the slots that follow, as far as their segment goes.
    So each target of a segment but its first *i* is the *i*-th of a slot exactly once.
    """

    name: ClassVar[str] = "mtp"
    takes_masks: ClassVar[bool] = True
    tokens: int = Field(ge=2, le=64, description="k: tokens that each slot predicts")

    def __call__(self, batch: Batch) -> Batch:
        ids, slots = batch["segment_ids"], batch["segment_ids"].shape[1]
        targets = np.zeros((*ids.shape, self.tokens), np.int32)
        mask = np.zeros(targets.shape, bool)
        for ahead in range(min(self.tokens, slots)):
            here, there = np.s_[:, : slots - ahead], np.s_[:, ahead:]
            same = (ids[here] == ids[there]) & (ids[here] > 0)
            targets[*here, ahead] = np.where(same, batch["targets"][there], 0)
            mask[*here, ahead] = same & batch["loss_mask"][there]
        return {**batch, "mtp_targets": targets, "mtp_mask": mask}


class Windows(NamedTuple):
    """The segments of a batch of which every slot has loss, as the windows of tokens they hold."""

    row: Ints
    """(windows,) number of the row, of the run"""
    number: Ints
    """of the segment in its row"""
    first: Ints
    """the slot where it begins, of all of the batch"""
    slots: Ints

    @classmethod
    def of(cls, batch: Batch, least: int) -> Self:
        """Those of at least so many slots; the last slot of a document may be without loss."""
        ids = batch["segment_ids"]
        begins = ((ids > 0) & (np.diff(ids, axis=1, prepend=0) != 0)).ravel()
        first, filled = np.flatnonzero(begins), np.flatnonzero(ids)
        owner, mask = (np.cumsum(begins) - 1)[filled], batch["loss_mask"].flat[filled]
        slots = np.bincount(owner[mask], minlength=len(first))
        ordered = mask == (filled - first[owner] < slots[owner])
        fits = np.bincount(owner[~ordered], minlength=len(first)) == 0
        chosen = np.flatnonzero(fits & (slots >= least))
        row = batch[ROW][first // ids.shape[1]]
        return cls(*(each[chosen] for each in (row, ids.ravel()[first], first, slots)))

    def take(self, chosen: Bools) -> "Windows":
        """Some of them."""
        return Windows(*(each[chosen] for each in self))

    def written(
        self, batch: Batch, pieces: tuple[Ints, Ints], more: list[Any], inputs: Ints | int = 0
    ) -> Batch:
        """The batch with other tokens in these windows.

        Args:
            batch: whose arrays are not changed.
            pieces: where each piece of each window, end to end, begins, and its tokens; a window
                has as many tokens as before. Token *j* of the batch's windows, end to end, is *j*;
                then come those of `more`.
            more: further tokens.
            inputs: of each window, how many of its tokens are only given: they have no loss.
        """
        window, place = expand(self.slots + 1)
        slot = self.first[window] + np.minimum(place, self.slots[window] - 1)
        last = place == self.slots[window]
        tokens = np.where(last, batch["targets"].flat[slot], batch["inputs"].flat[slot])
        made = np.append(tokens, more)[consecutive(*pieces)].astype(np.int32)
        found = {name: batch[name].copy() for name in ("inputs", "targets", "loss_mask")}
        found["inputs"].flat[slot[~last]] = made[~last]
        found["targets"].flat[slot[~last]] = made[1:][~last[:-1]]
        given = np.broadcast_to(inputs, self.slots.shape)[window] - 1
        found["loss_mask"].flat[slot[~last]] = place[~last] >= given[~last]
        return {**batch, **found}

    @property
    def _before(self) -> Ints:
        """Tokens of the windows before each."""
        return np.cumsum(self.slots + 1) - self.slots - 1


class FillInTheMiddle(Objective):
    """Prefix, suffix and middle of each window in another order (Bavarian et al., 2022).

    A window of *n* slots is cut at two places drawn at random, as Megatron does with its samples,
    but between tokens: `PRE prefix SUF suffix MID middle`, or, with `spm_rate`,
    `PRE SUF suffix MID prefix middle`. Its last token, which may end the document, stays the last.
    To make room the three tokens before that are left out; all others are trained exactly once.
    """

    name: ClassVar[str] = "fim"
    tokens_of: ClassVar[tuple[str, ...]] = ("prefix", "middle", "suffix")
    prefix: TokenId = Field(description="token before the prefix")
    middle: TokenId = Field(description="token before the middle")
    suffix: TokenId = Field(description="token before the suffix")
    rate: Share = Field(default=0.5, description="share of windows that are rearranged")
    spm_rate: Share = Field(default=0.5, description="share of these with the suffix first")

    def __call__(self, batch: Batch) -> Batch:
        found = Windows.of(batch, least=5)
        found = found.take(self._draws("rate", found.row, found.number) < self.rate)
        content = found.slots - 3
        edges = [
            np.floor(self._draws(name, found.row, found.number) * (content + 1)).astype(np.int64)
            for name in ("one edge", "other edge")
        ]
        start, stop = np.minimum(*edges), np.maximum(*edges)
        before, end = found._before, int((found.slots + 1).sum())
        one = np.ones_like(start)
        pre, mid, suf = ((one * (end + number), one) for number in range(3))
        sentinels: Any = [self.prefix, self.middle, self.suffix]
        first, middle = (before, start), (before + start, stop - start)
        rest, last = (before + stop, content - stop), (before + found.slots, one)
        orders = (
            [pre, first, suf, rest, mid, middle, last],
            [pre, suf, rest, mid, first, middle, last],
        )
        psm, spm = (np.stack([np.stack(each) for each in order]) for order in orders)
        chosen = self._draws("spm", found.row, found.number) < self.spm_rate
        pieces = np.where(chosen, spm, psm).transpose(1, 2, 0).reshape(2, -1)
        return found.written(batch, (pieces[0], pieces[1]), sentinels)


class SpanCorruption(Objective):
    """Spans are left out, and predicted after what is left (T5, UL2), in one causal sequence.

    Of a window, about `rate / length` spans an input, one in each of as many equal stretches, are
    each replaced by a sentinel; behind them come the sentinels again, each with its span, and the
    window's last token. Only what comes behind has loss. To make room, two tokens a span are left
    out before the last; of all others each is in the input or has loss.
    """

    name: ClassVar[str] = "span"
    tokens_of: ClassVar[tuple[str, ...]] = ("sentinels",)
    sentinels: list[TokenId] = Field(
        min_length=1, description="tokens that stand for spans, in turn"
    )
    rate: Share = Field(default=0.15, description="share of tokens in spans")
    length: int = Field(default=3, ge=1, le=2**16, description="tokens of a span, at most")

    def __call__(self, batch: Batch) -> Batch:
        found = Windows.of(batch, least=8)
        spans = np.rint(found.slots * self.rate / self.length).astype(np.int64)
        spans = np.clip(spans, 1, np.minimum(found.slots // 6, len(self.sentinels)))
        content = found.slots - 2 * spans
        window, number = expand(spans)
        edge = number * content[window] // spans[window]
        room = (number + 1) * content[window] // spans[window] - edge
        size = np.minimum(self.length, room - 1)
        drawn = self._draws("start", found.row[window], found.number[window], number)
        start = edge + np.floor(drawn * (room - size + 1)).astype(np.int64)
        before, end = found._before, int((found.slots + 1).sum())
        follows = np.append(False, window[1:] == window[:-1])
        kept = np.where(follows, np.append(0, start[:-1] + size[:-1]), 0)
        lasts = np.cumsum(spans) - 1
        tail, sentinel = start[lasts] + size[lasts], end + number
        every, one, at = np.arange(len(spans)), np.ones_like(number), before[window]
        pieces = [  # window, part of it, place there; where it begins, its tokens
            (window, one * 0, 2 * number, at + kept, start - kept),
            (window, one * 0, 2 * number + 1, sentinel, one),
            (every, one[every] * 1, every, before + tail, content - tail),
            (window, one * 2, 2 * number, sentinel, one),
            (window, one * 2, 2 * number + 1, at + start, size),
            (every, one[every] * 3, every, before + found.slots, one[every]),
        ]
        columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
        order = np.lexsort(columns[2::-1])
        inputs = content - np.bincount(window, size, len(spans)).astype(np.int64) + spans
        ranges = columns[3][order], columns[4][order]
        return found.written(batch, ranges, self.sentinels, inputs)


class MaskedTokens(Objective):
    """Inputs are masked, and predicted where they stand (BERT, 2019; masked diffusion).

    `targets` are the inputs themselves, with loss where `token` stands in their place. With
    `rate="uniform"` each segment has a rate *t* of its own, drawn from (0, 1], and `loss_weight`
    (batch, seq_len) float32 is 1/t there, as in the bound of masked diffusion (LLaDA, 2025). Each
    token of a document but its last is an input with a chance of loss exactly once.
    """

    name: ClassVar[str] = "mask"
    tokens_of: ClassVar[tuple[str, ...]] = ("token",)
    token: TokenId = Field(description="token that stands for what is masked")
    rate: Share | Literal["uniform"] = Field(default=0.15, description="share of masked tokens")

    def __call__(self, batch: Batch) -> Batch:
        ids = batch["segment_ids"]
        row, slot = batch[ROW][:, None], np.arange(ids.shape[1])
        rate: Any
        token: Any
        rate, token = self.rate, self.token
        if rate == "uniform":
            rate = 1 - self._draws("rate", *np.broadcast_arrays(row, ids))
        masked = batch["loss_mask"] & (self._draws("slot", *np.broadcast_arrays(row, slot)) < rate)
        found = {
            "inputs": np.where(masked, np.int32(token), batch["inputs"]),
            "targets": np.where(ids > 0, batch["inputs"], 0).astype(np.int32),
            "loss_mask": masked,
        }
        if self.rate == "uniform":
            found["loss_weight"] = np.where(masked, 1 / rate, 0).astype(np.float32)
        return {**batch, **found}


OBJECTIVES = {one.name: one for one in (NextTokens, FillInTheMiddle, SpanCorruption, MaskedTokens)}


def check_objective(given: Any) -> Objective | None:
    """The objective that was given as in a config: its name, with its settings.

    >>> check_objective({"mtp": 3}).facts()
    {'objective': {'mtp': {'seed': 0, 'tokens': 3}}}
    """
    if given is None or isinstance(given, Objective):
        return given
    name = next(iter(given)) if isinstance(given, Mapping) and len(given) == 1 else None
    if name not in OBJECTIVES:
        raise InputError(
            f"expected one of {', '.join(OBJECTIVES)} with its settings, such as {{'mtp': 3}} or "
            f"{{'mask': {{'token': 4}}}}, got {given!r}"
        )
    settings = given[name]
    if name == NextTokens.name and not isinstance(settings, Mapping):
        settings = {"tokens": settings}
    if not isinstance(settings, Mapping):
        raise InputError(f"expected the settings of {name} by name, got {settings!r}")
    return OBJECTIVES[name].checked(**settings)
