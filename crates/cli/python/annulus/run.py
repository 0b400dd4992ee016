"""Reads a run's folder, also during the run: metrics by step, manifest, checkpoints and evaluations."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

EXPERIMENT = "experiment.yaml"
METRICS = "metrics.jsonl"
MANIFEST = "manifest.json"
MEMORY = "memory/"
# What `annulus evaluate` writes, each into a file of its name.
EVALUATIONS = ["perplexity", "conversations", "tasks"]

# Reductions of the numbers of all ranks to one.
OVER_RANKS: Dict[str, Callable[[List[float]], float]] = {
    "max": max,
    "min": min,
    "mean": lambda numbers: sum(numbers) / len(numbers),
}


class RunError(Exception):
    """An error in a run's folder, with a hint."""


class Run:
    """The run in a folder: the `output` of its experiment."""

    def __init__(self, folder: str | os.PathLike) -> None:
        self.path = Path(folder)
        if not _is_run(self.path):
            raise RunError(_no_run(self.path))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def experiment(self) -> str:
        """The resolved experiment, as YAML."""
        return self._text(EXPERIMENT, "a run writes it when it starts")

    @property
    def manifest(self) -> Dict[str, Any]:
        """The manifest: versions and hashes, the machine, every start with its command."""
        return self._json(MANIFEST, "a run writes it when it starts")

    def lines(self, ranks: Optional[str] = None) -> List[Dict[str, Any]]:
        """The metrics: a dictionary per logged step, in order.

        Numbers per rank are lists, or their `max`, `min` or `mean` if `ranks` says which. Values that were not finite are NaN.
        """
        number = _over(ranks)
        return [{tag: number(value) for tag, value in line.items()} for line in self._lines()]

    def metrics(self, ranks: Optional[str] = None) -> Any:
        """`lines` as a pandas DataFrame indexed by step; without pandas, a list."""
        lines = self.lines(ranks)
        try:
            import pandas
        except ImportError:
            return lines
        tags = list(dict.fromkeys(tag for line in lines for tag in line))
        return pandas.DataFrame(lines, columns=tags or ["step"]).set_index("step")

    def tags(self) -> List[str]:
        """The names of all metrics."""
        return sorted({tag for line in self._lines() for tag in line} - {"step"})

    def curve(self, tag: str, ranks: Optional[str] = None) -> Tuple[List[int], List[Any]]:
        """The steps at which `tag` was logged, and its values."""
        known = [line for line in self.lines(ranks) if tag in line]
        if not known:
            tags = ", ".join(self.tags()) or "nothing yet: no step is logged"
            raise RunError(f"`{self.path}` has no `{tag}` at any step; it has {tags}")
        return [line["step"] for line in known], [line[tag] for line in known]

    def memory(self) -> Dict[str, float]:
        """Bytes by memory class: the most that a rank held in the last logged step; `peak` is of all classes together."""
        for line in reversed(self.lines("max")):
            held = {tag[len(MEMORY):]: value for tag, value in line.items() if tag.startswith(MEMORY)}
            # What processes hold, as the system sees it, is no class of a rank.
            held = {name: value for name, value in held.items() if "/" not in name}
            if held:
                return held
        raise RunError(f"`{self.path}` has no memory by class: no step is logged in its {METRICS} yet")

    def checkpoints(self) -> List[Path]:
        """The folders `step-N`, in the order of their steps."""
        named = (path for path in self.path.iterdir() if re.fullmatch(r"step-\d+", path.name) and path.is_dir())
        return sorted(named, key=_step)

    def steps(self) -> int:
        """How many steps the run has done, as far as it logged or saved them; of a fork without those before it."""
        began = self.manifest.get("began") or 0
        logged = [line["step"] for line in self._lines()]
        saved = [_step(path) for path in self.checkpoints()]
        return max([began, *logged, *saved]) - began

    def evaluation(self, folder: str | os.PathLike = "evaluation") -> Dict[str, Any]:
        """The results of `annulus evaluate`: `perplexity`, `conversations` and `tasks`, as far as they were evaluated.

        `folder` is the one that its `--out` named: a path, or a folder in the run's.
        """
        place = self.path / folder
        if not place.is_dir() and Path(folder).is_dir():
            place = Path(folder)
        files = {key: place / f"{key}.json" for key in EVALUATIONS}
        again = f"`annulus evaluate {self.path}` makes it again"
        return {key: _json(file, again) for key, file in files.items() if file.is_file()}

    def _lines(self) -> Iterator[Dict[str, Any]]:
        path = self.path / METRICS
        if not path.is_file():
            return
        lines = _text(path, "is it yours to read?").split("\n")
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
                yield {"step": line.pop("step"), **line}
            except (ValueError, AttributeError, KeyError, TypeError):
                # The last line is incomplete while it is being written.
                if number < len(lines):
                    hint = "remove the line, or take the file from a copy of the run"
                    raise RunError(f"`{path}`, line {number} is no JSON object with a `step`: {hint}") from None

    def _text(self, name: str, hint: str) -> str:
        return _text(self.path / name, hint)

    def _json(self, name: str, hint: str) -> Dict[str, Any]:
        return _json(self.path / name, hint)


def runs(folder: str | os.PathLike = "runs") -> List[Run]:
    """All runs below a folder, sorted by path."""
    top = Path(folder)
    if not top.is_dir():
        raise RunError(f"no folder `{top}` in `{Path.cwd()}`: give the one that has the runs' folders in it")
    return [Run(path) for path in _below(top)]


def _below(top: Path) -> Iterator[Path]:
    if _is_run(top):
        yield top
        return
    for path in sorted(top.iterdir()):
        if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
            yield from _below(path)


def _is_run(folder: Path) -> bool:
    # Checkpoints contain an experiment as well.
    return (folder / EXPERIMENT).is_file() and any((folder / name).is_file() for name in (METRICS, MANIFEST))


def _no_run(folder: Path) -> str:
    if not folder.exists():
        what = f"no folder `{folder}`" + ("" if folder.is_absolute() else f" in `{Path.cwd()}`")
    elif not folder.is_dir():
        what = f"`{folder}` is no folder"
    else:
        what = f"`{folder}` is no run's folder: it lacks {EXPERIMENT}, or {METRICS} and {MANIFEST}"
    return f"{what}; give the folder that is `output` in the run's experiment{_others(folder)}"


def _others(folder: Path) -> str:
    """Runs to suggest in an error: below the folder, or next to it."""
    for top in (folder, folder.parent):
        if top.is_dir():
            beside = sorted(path for path in [*top.iterdir()] if path.is_dir() and _is_run(path))
            if beside:
                return "; there are " + ", ".join(f"`{path}`" for path in beside[:8])
    return ""


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _over(ranks: Optional[str]) -> Callable[[Any], Any]:
    if ranks is not None and ranks not in OVER_RANKS:
        raise ValueError(f"ranks={ranks!r}: it is one of {', '.join(map(repr, OVER_RANKS))}, or None for lists")

    def number(value: Any) -> Any:
        if value is None:
            return math.nan
        return OVER_RANKS[ranks](value) if ranks is not None and isinstance(value, list) and value else value

    return number


def _text(path: Path, hint: str) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RunError(f"cannot read `{path}`: {error.strerror or error}; {hint}") from None


def _json(path: Path, hint: str) -> Dict[str, Any]:
    try:
        return json.loads(_text(path, hint))
    except ValueError as error:
        raise RunError(f"`{path}` is no JSON: {error}; {hint}") from None
