"""The figures of a shuffle as lines of text: what was found, and whether it is good."""

from __future__ import annotations

from collections.abc import Iterator

from jaxdata.testing.shuffle_limits import LENGTH, NUMBER, Figure
from jaxdata.testing.shuffle_measure import ShuffleQuality

_NAME, _CELL = 32, 24


def shuffle_lines(quality: ShuffleQuality) -> Iterator[str]:
    r"""What was measured of a source: a line that sums up, and a table.

    >>> from jaxdata.testing.shuffle_measure import ShuffleQuality
    >>> figures = (Figure("equal neighbours", "length", 0.85, 0.007, 0.014),)
    >>> web = ShuffleQuality("web", "best_fit, shuffled", 640, 640, 64, 1, figures)
    >>> print("\n".join(line.rstrip() for line in shuffle_lines(web)))
    web (best_fit, shuffled): 1 of 1 figures is not good; 640 of 640 rows, 64 in a batch
                                      length of documents     number of documents
      equal neighbours                85.00 % POOR (1.40 %)
    """
    yield _summary(quality)
    if any(each.good is not None for each in quality.figures):
        yield f"  {'':<{_NAME}}{'length of documents':<{_CELL}}number of documents"
    for name in dict.fromkeys(each.name for each in quality.figures if each.good is not None):
        cells = [_cell(quality, name, of) for of in (LENGTH, NUMBER)]
        yield f"  {name:<{_NAME}}{cells[0]:<{_CELL}}{cells[1]}".rstrip()
    missing = {each.name: each.why for each in quality.figures if each.good is None}
    for why in dict.fromkeys(missing.values()):
        names = "; ".join(name for name, its in missing.items() if its == why)
        yield f"  not measured ({why}): {names}"


def _summary(quality: ShuffleQuality) -> str:
    known = [each for each in quality.figures if each.good is not None]
    poor = len(quality.poor)
    verdict = f"{poor} of {len(known)} figures {'is' if poor == 1 else 'are'} not good"
    if not known:
        verdict = "nothing could be measured"
    elif not poor:
        verdict = f"all {len(known)} figures are good"
    hosts = f" over {quality.hosts} hosts" if quality.hosts > 1 else ""
    looked_at = f"{quality.rows:,} of {quality.of_rows:,} rows, {quality.batch:,} in a batch{hosts}"
    return f"{quality.source} ({quality.packing}): {verdict}; {looked_at}"


def _cell(quality: ShuffleQuality, name: str, of: str) -> str:
    found = [each for each in quality.figures if (each.name, each.of) == (name, of)]
    return "".join(_said(each) for each in found)


def _said(figure: Figure) -> str:
    if figure.found is None or figure.limit is None:
        return "not measured"
    verdict = "good" if figure.good else "POOR"
    if "neighbours" in figure.name:
        return f"{figure.found:.2%} {verdict} ({figure.limit:.2%})".replace("%", " %")
    return f"{figure.found:.2f} {verdict} ({figure.limit:.2f})"
