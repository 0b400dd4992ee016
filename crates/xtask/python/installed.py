"""Trains the first steps of the quickstart in an empty folder with the installed program, and opens the run with the installed
reader."""

import subprocess
import sys
import tempfile
from pathlib import Path

import annulus

STEPS = 3


def main() -> None:
    assert Path(annulus.__file__).is_relative_to(sys.prefix), annulus.__file__
    program = annulus.program()
    assert Path(program).parent == Path(sys.executable).parent, program
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        def run(*words: str) -> None:
            print(">", "annulus", *words, file=sys.stderr, flush=True)
            subprocess.run([program, *words], cwd=place, check=True, stdout=subprocess.DEVNULL)

        run("doctor")
        run("init")
        run("train", "experiments/quickstart.yaml", f"schedule.steps={STEPS}", "schedule.warmup=1", "every.log=1")
        look(annulus.Run(place / "runs/quickstart"), place)


def look(run: annulus.Run, place: Path) -> None:
    steps, losses = run.curve("train/loss")
    assert steps == list(range(1, STEPS + 1)), steps
    assert all(0 < loss < 10 for loss in losses), losses
    assert run.manifest["attempts"][-1]["ending"] == "finished", run.manifest
    assert "quickstart" in run.experiment
    assert [path.name for path in run.checkpoints()] == [f"step-{STEPS}"], run.checkpoints()
    assert run.memory()["weights"] > 0
    assert len(run.curve("comm/bytes")[1][-1]) == run.manifest["attempts"][-1]["ranks"]
    assert [found.path for found in annulus.runs(place / "runs")] == [run.path]
    print(f"losses {', '.join(f'{loss:.4f}' for loss in losses)}; {len(run.metrics())} steps read", file=sys.stderr)


main()
