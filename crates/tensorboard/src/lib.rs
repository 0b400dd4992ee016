//! TensorBoard event files, nothing else: scalars and text, records with checksums, a flush that flushes.
#![allow(clippy::todo, reason = "skeleton")]

use std::io;
use std::path::Path;

/// Writes one event file. Never shares a file with another writer.
#[derive(Debug)]
pub struct Writer {}

impl Writer {
    /// Creates a new `events.out.tfevents.*` file in `folder`. With `resume_from: Some(step)` a `SessionLog START` event at that
    /// step is written, so that TensorBoard drops what an earlier file says of later steps.
    pub fn create(_folder: &Path, _resume_from: Option<u64>) -> io::Result<Writer> {
        todo!()
    }
    /// One number.
    pub fn scalar(&mut self, _step: u64, _tag: &str, _value: f64) -> io::Result<()> {
        todo!()
    }
    /// Markdown.
    pub fn text(&mut self, _step: u64, _tag: &str, _text: &str) -> io::Result<()> {
        todo!()
    }
    /// Everything so far is on disk.
    pub fn flush(&mut self) -> io::Result<()> {
        todo!()
    }
}
