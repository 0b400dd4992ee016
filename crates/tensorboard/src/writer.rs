//! Writes one event file.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{Category, Event, Payload, Setting, plugins, read, record};

/// What the name of every event file begins with: TensorBoard looks for it.
const PREFIX: &str = "events.out.tfevents.";

/// The version of the format: steps of a `Start` are honoured from 2 on.
const VERSION: &str = "brain.Event:2";

/// Writes one event file. Never shares a file with another writer.
///
/// Events are buffered; [`Writer::flush`] puts them on disk, and dropping the writer hands them to the
/// operating system.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Writer {
    /// Creates a new `events.out.tfevents.*` file in `folder`, and `folder` where it is missing.
    ///
    /// With `resume_from: Some(step)`, the last step that holds, a `SessionLog START` event at
    /// `step + 1` is written: TensorBoard drops what earlier files of the folder say of later steps.
    /// TensorBoard reads files in name order, so the name sorts after those that are there already,
    /// even within a microsecond or after the clock was set back.
    ///
    /// # Errors
    /// A folder or file that cannot be written.
    pub fn create(folder: &Path, resume_from: Option<u64>) -> io::Result<Writer> {
        fs::create_dir_all(folder)?;
        let (path, file) = create_last(folder)?;
        let mut writer = Writer { path, file: BufWriter::new(file) };
        writer.write(0, Payload::Version(VERSION.to_owned()))?;
        if let Some(step) = resume_from {
            writer.write(step.saturating_add(1), Payload::Start)?;
        }
        writer.flush()?;
        // The file's name is on disk too.
        File::open(folder)?.sync_all()?;
        Ok(writer)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// One number. The format keeps 32 bits of it.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn scalar(&mut self, step: u64, tag: &str, value: f64) -> io::Result<()> {
        self.write(step, Payload::Scalar { tag: tag.to_owned(), value: value as f32 })
    }

    /// Markdown.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn text(&mut self, step: u64, tag: &str, text: &str) -> io::Result<()> {
        self.write(step, Payload::Text { tag: tag.to_owned(), text: text.to_owned() })
    }

    /// A picture of so many pixels, as a PNG file has it.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn image(
        &mut self,
        step: u64,
        tag: &str,
        [width, height]: [u32; 2],
        png: Vec<u8>,
    ) -> io::Result<()> {
        self.write(step, Payload::Image { tag: tag.to_owned(), width, height, png })
    }

    /// The charts of the page "Custom Scalars", in order.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn layout(&mut self, categories: &[Category]) -> io::Result<()> {
        self.write(0, plugins::layout(categories))
    }

    /// The run's hyperparameters, the most important first, and the tags whose last values stand beside them on the page "HParams".
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn hyperparameters(
        &mut self,
        settings: &[(&str, Setting)],
        metrics: &[&str],
    ) -> io::Result<()> {
        self.write(0, plugins::columns(settings, metrics))?;
        self.write(0, plugins::row(settings, now().as_secs_f64()))
    }

    /// Everything so far is on disk.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_data()
    }

    fn write(&mut self, step: u64, payload: Payload) -> io::Result<()> {
        let event = Event { wall_time: now().as_secs_f64(), step, payload };
        record::write(&mut self.file, &event.encode())
    }
}

/// A file of our own that sorts after all event files of `folder`.
fn create_last(folder: &Path) -> io::Result<(PathBuf, File)> {
    let mut stamp = (now().as_micros() as u64).max(last_stamp(folder)? + 1);
    loop {
        let (seconds, rest) = (stamp / 1_000_000, stamp % 1_000_000);
        let path = folder.join(format!("{PREFIX}{seconds:010}.{rest:06}"));
        match File::options().write(true).create_new(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => stamp += 1,
            Err(error) => return Err(error),
            Ok(file) => return Ok((path, file)),
        }
    }
}

/// The largest time, in microseconds, in the names of the event files of `folder`; 0 without any.
fn last_stamp(folder: &Path) -> io::Result<u64> {
    let mut last = 0;
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        if let Some(stamp) = name.to_str().and_then(|name| stamp_of(name.strip_prefix(PREFIX)?)) {
            last = last.max(stamp);
        }
    }
    Ok(last)
}

/// Removes the event files of earlier [`Writer`]s from `folder`, which need not exist; files of other programs, whose names say more,
/// stay.
///
/// # Errors
/// A folder that cannot be read or changed.
pub fn remove(folder: &Path) -> io::Result<()> {
    remove_if(folder, |_| true)
}

/// As [`remove`], but only files that show nothing but events of `step`.
///
/// # Errors
/// A folder that cannot be read or changed.
pub fn remove_step(folder: &Path, step: u64) -> io::Result<()> {
    remove_if(folder, |path| shows_only(path, step))
}

fn remove_if(folder: &Path, is_unwanted: impl Fn(&Path) -> bool) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()?.strip_prefix(PREFIX));
        let parts = name.and_then(|name| name.split_once('.'));
        let digits =
            |text: &str, many| text.len() == many && text.bytes().all(|b| b.is_ascii_digit());
        let is_ours = parts.is_some_and(|(seconds, rest)| digits(seconds, 10) && digits(rest, 6));
        if is_ours && is_unwanted(&path) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Whether every number and picture of an event file is of `step`.
fn shows_only(path: &Path, step: u64) -> bool {
    let is_shown = |event: &Event| !matches!(event.payload, Payload::Version(_));
    // What cannot be read may be of another step.
    let Ok(events) = read(path) else { return false };
    events.iter().filter(|event| is_shown(event)).all(|event| event.step == step)
}

/// The time in `SECONDS.MICROSECONDS`, or in other writers' `SECONDS.HOST…`.
fn stamp_of(name: &str) -> Option<u64> {
    let (seconds, rest) = name.split_once('.').unwrap_or((name, ""));
    let microseconds: u64 = if rest.len() == 6 { rest.parse().ok()? } else { 999_999 };
    // More digits would not sort as numbers do.
    let seconds: u64 = seconds.get(..10).filter(|all| *all == seconds)?.parse().ok()?;
    Some(seconds * 1_000_000 + microseconds)
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
