//! The folder of an evaluation: results as JSON, drawings of them, and both for TensorBoard.

use std::io;
use std::path::{Path, PathBuf};

use annulus_figure::{Axis, Curves, Heatmap, Picture, Point, Series};
use annulus_tensorboard::{Writer, remove_step};
use annulus_train::{Result, TrainError, is_run};
use serde::Serialize;

use crate::earlier::settle;
use crate::statistics::Mean;
use crate::{Bucket, Conversations, Perplexity, RESULTS, TaskResults};

/// The names of the drawings that every evaluation can have; tasks have their own.
pub(crate) const PICTURES: [&str; 3] = [LENGTHS, POSITIONS, TASKS];
const LENGTHS: &str = "loss-by-length";
const POSITIONS: &str = "loss-by-position";
const TASKS: &str = "tasks-by-length";

/// A folder that an evaluation is written to, and the names of what was written.
#[derive(Debug)]
pub struct Files {
    folder: PathBuf,
    events: Writer,
    step: u64,
    /// The files that were written, in order.
    pub written: Vec<PathBuf>,
}

impl Files {
    /// Opens the folder, creating it if needed; TensorBoard shows results at `step`. Earlier results of this step are replaced; those of
    /// another step stay in TensorBoard, and move to the folder that [`kept_in`](crate::kept_in) names.
    ///
    /// # Errors
    /// When the folder cannot be written to.
    pub fn create(folder: &Path, step: u64) -> Result<Files> {
        // TensorBoard would show the points of all evaluations of this step; a run's own curves stay.
        let removed = if is_run(folder) { Ok(()) } else { remove_step(folder, step) };
        let settled = removed.and_then(|()| settle(folder, step));
        let events = settled.and_then(|()| Writer::create(folder, None));
        let events = events.map_err(|error| failed(folder, &error))?;
        Ok(Files { folder: folder.to_owned(), events, step, written: Vec::new() })
    }

    /// Writes `perplexity.json`, the curves by length and by position, and scalars.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn perplexity(&mut self, found: &Perplexity) -> Result<()> {
        self.json(RESULTS[0], found)?;
        for length in &found.lengths {
            let tag = format!("evaluation/loss/{}", length.tokens);
            self.scalar(&tag, length.loss.mean)?;
        }
        let title = format!(
            "{}: {} windows, their last {} tokens",
            found.name, found.windows, found.targets
        );
        let points = found.by_length();
        let y = "loss in nats, with standard errors";
        if found.lengths.len() > 1 {
            self.curves(LENGTHS, &title, Axis::logarithmic("tokens read"), y, points)?;
        } else {
            self.drop_pictures(LENGTHS);
        }
        if let Some(Bucket { to: longest, .. }) = found.positions.last() {
            let title = format!("{}: {} windows of {longest} tokens", found.name, found.windows);
            self.curves(POSITIONS, &title, Axis::plain("position"), y, found.by_position())?;
        } else {
            self.drop_pictures(POSITIONS);
        }
        self.flush()
    }

    /// Writes `conversations.json`, and scalars.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn conversations(&mut self, found: &Conversations) -> Result<()> {
        self.json(RESULTS[1], found)?;
        for length in &found.lengths {
            let tag = |what: &str| format!("evaluation/{what}/{}", length.tokens);
            self.scalar(&tag("conversations"), length.loss.mean)?;
            if let Some(right) = length.right {
                self.scalar(&tag("answers"), right.value())?;
            }
        }
        self.flush()
    }

    /// Writes `tasks.json`, a heatmap of every task with depths, the rates of right answers by length, and scalars.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn tasks(&mut self, found: &TaskResults) -> Result<()> {
        self.json(RESULTS[2], found)?;
        let mut series = Vec::new();
        for task in found.tasks() {
            let share = |tokens| {
                let share = found.at(task, tokens);
                Point { x: tokens as f64, y: share.value(), error: 0.0 }
            };
            let points: Vec<Point> = found.lengths().into_iter().map(share).collect();
            for point in &points {
                self.scalar(&format!("evaluation/{task}/{}", point.x), point.y)?;
            }
            series.push(Series { name: task.to_owned(), points, ..Series::default() });
            if let Some(map) = found.heatmap(task) {
                self.picture(task, &map.picture())?;
            }
        }
        let (x, y) = (Axis::logarithmic("tokens"), Axis::share("share of answers that are right"));
        let title = format!("{}: {} ranks", found.name, found.ranks);
        self.picture(TASKS, &Curves { title, x, y, series }.picture())?;
        self.flush()
    }

    fn curves(
        &mut self,
        name: &str,
        title: &str,
        x: Axis,
        y: &str,
        points: Vec<Point>,
    ) -> Result<()> {
        let series = vec![Series { points, ..Series::default() }];
        let curves = Curves { title: title.to_owned(), x, y: Axis::plain(y), series };
        self.picture(name, &curves.picture())
    }

    /// Writes a drawing as SVG and PNG, and for TensorBoard.
    fn picture(&mut self, name: &str, picture: &Picture) -> Result<()> {
        let png = picture.to_png().map_err(|error| failed(&self.folder, &error))?;
        self.write(&format!("{name}.svg"), picture.to_svg().as_bytes())?;
        self.write(&format!("{name}.png"), &png)?;
        let (tag, size) = (format!("evaluation/{name}"), [picture.width, picture.height]);
        let drawn = self.events.image(self.step, &tag, size, png);
        drawn.map_err(|error| failed(&self.folder, &error))
    }

    /// Removes the drawings of an earlier evaluation: a single length has no curve, nor have windows without gaps by position.
    fn drop_pictures(&self, name: &str) {
        for ending in ["svg", "png"] {
            // A missing file is fine.
            let _ = std::fs::remove_file(self.folder.join(format!("{name}.{ending}")));
        }
    }

    fn scalar(&mut self, tag: &str, value: f64) -> Result<()> {
        let drawn = self.events.scalar(self.step, tag, value);
        drawn.map_err(|error| failed(&self.folder, &error))
    }

    fn flush(&mut self) -> Result<()> {
        self.events.flush().map_err(|error| failed(&self.folder, &error))
    }

    fn json(&mut self, name: &str, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(value)
            .map_err(|error| TrainError::Internal(error.to_string()))?;
        self.write(name, format!("{text}\n").as_bytes())
    }

    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.folder.join(name);
        annulus_files::write(&path, bytes).map_err(|error| failed(&path, &error))?;
        self.written.push(path);
        Ok(())
    }
}

impl Perplexity {
    /// The mean loss of the same targets, by the number of tokens read before them.
    pub fn by_length(&self) -> Vec<Point> {
        self.lengths.iter().map(|length| point(length.tokens as f64, length.loss)).collect()
    }

    /// The mean loss by position, of neighbouring positions at their middle.
    pub fn by_position(&self) -> Vec<Point> {
        let middle = |bucket: &Bucket| f64::midpoint(bucket.from as f64, bucket.to as f64);
        self.positions.iter().map(|bucket| point(middle(bucket), bucket.loss)).collect()
    }
}

impl TaskResults {
    /// The cells of a task by depth and length; `None` for a task without depths.
    pub fn heatmap(&self, task: &str) -> Option<Heatmap> {
        let cells = || self.cells.iter().filter(|cell| cell.task == task);
        let lengths = self.lengths();
        let of_first = cells().filter(|cell| Some(&cell.tokens) == lengths.first());
        let depths: Vec<f64> = of_first.map(|cell| cell.depth).collect::<Option<_>>()?;
        let share = |depth: f64, tokens: usize| {
            let mut cells = cells().filter(|cell| cell.depth == Some(depth));
            cells.find(|cell| cell.tokens == tokens).map(|cell| cell.right.value())
        };
        let row = |&depth: &f64| lengths.iter().map(|&tokens| share(depth, tokens)).collect();
        let samples = cells().next().map_or(0, |cell| cell.right.of);
        (!depths.is_empty()).then(|| Heatmap {
            title: format!("{}: {task}, % of {samples} answers that are right", self.name),
            x: "tokens".to_owned(),
            y: "depth in %".to_owned(),
            columns: lengths.iter().map(usize::to_string).collect(),
            rows: depths.iter().map(|depth| format!("{:.0}", 100.0 * depth)).collect(),
            cells: depths.iter().map(row).collect(),
        })
    }
}

fn point(x: f64, Mean { mean, standard_error }: Mean) -> Point {
    Point { x, y: mean, error: standard_error.unwrap_or_default() }
}

fn failed(path: &Path, error: &io::Error) -> TrainError {
    TrainError::checkpoint(
        format!("cannot write `{}`: {error}", path.display()),
        "set another folder: `--out FOLDER`",
    )
}
