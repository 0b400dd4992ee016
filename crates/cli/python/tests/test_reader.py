"""Tests the reader of run folders, and its errors for other folders."""

import math
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

SOURCE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SOURCE))

import annulus  # noqa: E402

KEPT = SOURCE.parents[2] / "notebooks" / "data"
LINES = """\
{"step": 1, "train/loss": 5.5e0, "comm/bytes": [4, 2, 3], "memory/weights": [7, 9, 8], "memory/resident/process-0": 99, "memory/peak": [20, 30, 10]}
{"step": 2, "train/loss": null, "comm/bytes": [4, 2, 3], "evaluate/loss": 5.0e0}
{"step": 3, "train/loss": 4.5e0, "comm/bytes": [4"""


class Reader(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = Path(folder.name)
        self.folder = self.made("runs/one", LINES)

    def made(self, name, lines):
        folder = self.top / name
        folder.mkdir(parents=True)
        (folder / "experiment.yaml").write_text("name: one\n")
        (folder / "manifest.json").write_text('{"version": "0.1.0", "attempts": [{"ending": "finished"}]}')
        (folder / "metrics.jsonl").write_text(lines)
        return folder

    def test_lines_keep_numbers_per_rank_until_one_is_asked_for(self):
        run = annulus.Run(self.folder)
        self.assertEqual([line["step"] for line in run.lines()], [1, 2])
        self.assertEqual(run.lines()[0]["comm/bytes"], [4, 2, 3])
        for ranks, number in [("max", 4), ("min", 2), ("mean", 3)]:
            self.assertEqual(run.lines(ranks)[0]["comm/bytes"], number)
        with self.assertRaisesRegex(ValueError, "'max', 'min', 'mean'"):
            run.lines("sum")

    def test_a_line_that_is_being_written_is_not_read_and_a_broken_one_is_named(self):
        self.assertEqual(len(annulus.Run(self.folder).lines()), 2)
        broken = self.made("runs/broken", '{"step": 1}\n{"st\n{"step": 3}\n')
        with self.assertRaisesRegex(annulus.RunError, "metrics.jsonl`, line 2 is no JSON"):
            annulus.Run(broken).lines()

    def test_curves_have_the_steps_at_which_they_are_known(self):
        run = annulus.Run(str(self.folder))
        self.assertEqual(run.curve("evaluate/loss"), ([2], [5.0]))
        steps, losses = run.curve("train/loss")
        self.assertEqual(steps, [1, 2])
        self.assertTrue(math.isnan(losses[1]))
        with self.assertRaisesRegex(annulus.RunError, "no `loss` at any step; it has comm/bytes, evaluate/loss"):
            run.curve("loss")

    def test_memory_is_the_most_of_any_rank_when_it_was_last_logged(self):
        self.assertEqual(annulus.Run(self.folder).memory(), {"weights": 9, "peak": 30})
        empty = annulus.Run(self.made("runs/empty", ""))
        self.assertEqual(empty.lines(), [])
        with self.assertRaisesRegex(annulus.RunError, "no step is logged"):
            empty.memory()

    def test_metrics_without_pandas_are_the_lines(self):
        run = annulus.Run(self.folder)
        with mock.patch.dict(sys.modules, {"pandas": None}):
            self.assertEqual(run.metrics("max"), run.lines("max"))

    def test_metrics_with_pandas_are_indexed_by_step(self):
        try:
            import pandas
        except ImportError:
            self.skipTest("no pandas")
        found = annulus.Run(self.folder).metrics("max")
        self.assertIsInstance(found, pandas.DataFrame)
        self.assertEqual(list(found.index), [1, 2])
        self.assertEqual(found.loc[1, "comm/bytes"], 4)
        self.assertEqual(len(annulus.Run(self.made("runs/none", "")).metrics()), 0)

    def test_checkpoints_are_in_the_order_of_their_steps(self):
        run = annulus.Run(self.folder)
        self.assertEqual(run.checkpoints(), [])
        for name in ["step-100", "step-20", "step-x", ".step-3", "steps"]:
            (self.folder / name).mkdir()
        (self.folder / "step-4").write_text("no folder")
        self.assertEqual([path.name for path in run.checkpoints()], ["step-20", "step-100"])

    def test_steps_are_those_that_were_done(self):
        def made(name, *logged):
            return annulus.Run(self.made(f"runs/{name}", "".join(f'{{"step": {step}}}\n' for step in logged)))

        self.assertEqual(made("nothing").steps(), 0)
        # Evaluated before the first step; and only the last one logged.
        self.assertEqual(made("every", *range(7)).steps(), 6)
        self.assertEqual(made("last", 0, 4).steps(), 4)
        saved = made("saved", 2)
        (saved.path / "step-5").mkdir()
        self.assertEqual(saved.steps(), 5)
        (saved.path / "manifest.json").write_text('{"began": 3}')
        self.assertEqual(saved.steps(), 2)

    def test_evaluations_are_what_lies_there(self):
        run = annulus.Run(self.folder)
        self.assertEqual(run.evaluation(), {})
        place = self.folder / "evaluation"
        place.mkdir()
        (place / "perplexity.json").write_text('{"lengths": []}')
        self.assertEqual(run.evaluation(), {"perplexity": {"lengths": []}})
        (place / "conversations.json").write_text('{"lengths": [{"tokens": 64}]}')
        self.assertEqual(run.evaluation()["conversations"], {"lengths": [{"tokens": 64}]})
        (place / "tasks.json").write_text("{")
        with self.assertRaisesRegex(annulus.RunError, "tasks.json` is no JSON.*annulus evaluate"):
            run.evaluation()
        elsewhere = self.top / "elsewhere"
        place.rename(elsewhere)
        (elsewhere / "tasks.json").write_text('{"cells": []}')
        self.assertEqual(run.evaluation(elsewhere)["tasks"], {"cells": []})

    def test_what_made_a_run(self):
        run = annulus.Run(self.folder)
        self.assertEqual(run.manifest["version"], "0.1.0")
        self.assertEqual(run.experiment, "name: one\n")
        self.assertEqual(run.name, "one")
        (self.folder / "manifest.json").unlink()
        with self.assertRaisesRegex(annulus.RunError, "cannot read `.*manifest.json`"):
            run.manifest

    def test_runs_are_found_below_a_folder_and_not_in_one_another(self):
        self.made("runs/more/two", "")
        self.made("runs/one/step-2", "")
        found = [run.path.relative_to(self.top).as_posix() for run in annulus.runs(self.top)]
        self.assertEqual(found, ["runs/more/two", "runs/one"])
        with self.assertRaisesRegex(annulus.RunError, "no folder `.*nowhere`"):
            annulus.runs(self.top / "nowhere")

    def test_what_is_no_run_s_folder_is_said_with_those_that_are(self):
        with self.assertRaisesRegex(annulus.RunError, "no folder `.*tow`.*there are `.*one`"):
            annulus.Run(self.top / "runs/tow")
        with self.assertRaisesRegex(annulus.RunError, "lacks experiment.yaml.*there are `.*one`"):
            annulus.Run(self.top / "runs")
        with self.assertRaisesRegex(annulus.RunError, "is no folder"):
            annulus.Run(self.folder / "metrics.jsonl")

    def test_the_program_is_the_one_beside_the_interpreter(self):
        for name in ["scripts", "path"]:
            (self.top / name).mkdir()
            program = self.top / name / "annulus"
            program.write_text("")
            program.chmod(0o755)
        interpreter = self.top / "scripts" / "python"
        with mock.patch.dict("os.environ", PATH=str(self.top / "path")):
            with mock.patch("sysconfig.get_path", return_value=str(self.top / "none")):
                with mock.patch.object(sys, "executable", str(interpreter)):
                    self.assertEqual(annulus.program(), str(self.top / "scripts" / "annulus"))
                with mock.patch.object(sys, "executable", str(self.top / "none" / "python")):
                    self.assertEqual(annulus.program(), str(self.top / "path" / "annulus"))
                    (self.top / "path" / "annulus").unlink()
                    with self.assertRaisesRegex(FileNotFoundError, "install the wheel"):
                        annulus.program()

    def test_kept_runs_are_read(self):
        run = annulus.Run(KEPT / "ring")
        self.assertEqual(run.curve("train/loss")[0], list(range(1, 11)))
        self.assertIn("weights", run.memory())
        self.assertIn(run.path, [found.path for found in annulus.runs(KEPT)])


if __name__ == "__main__":
    unittest.main()
