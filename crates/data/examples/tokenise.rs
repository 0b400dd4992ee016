//! Tokenises one line of many megabytes and prints the time and the most memory it took.
//!
//! `cargo run --release -p annulus-data --example tokenise -- MEGABYTES TOKENIZER [TEXT]`; `TOKENIZER`
//! is `bytes` or a `tokenizer.json`, `TEXT` a file that the line is made of.

#![expect(clippy::print_stdout, reason = "a program that prints")]

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use annulus_data::{Cache, Tokenizer};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let megabytes: usize = arguments.next().ok_or("how many megabytes?")?.parse()?;
    let tokenizer = Tokenizer::open(&arguments.next().ok_or("which tokenizer?")?)?;
    let text = match arguments.next() {
        Some(path) => fs::read_to_string(path)?,
        None => "It was the best of times, it was the worst of times, ".to_owned(),
    };
    let folder = std::env::temp_dir().join(format!("annulus-tokenise-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let line = folder.join("line.txt");
    write_line(&line, &text, megabytes * 1_000_000)?;
    let start = Instant::now();
    let cache =
        Cache::open(std::slice::from_ref(&line), false, &tokenizer, &folder, &mut |_, _| {})?;
    let seconds = start.elapsed().as_secs_f64();
    let bytes = fs::metadata(&line)?.len();
    println!("{bytes} bytes, {} tokens", cache.tokens());
    println!("{seconds:.2} s, {:.1} MB/s", bytes as f64 / 1e6 / seconds);
    println!("{}", peak().unwrap_or_else(|| "no peak memory on this system".to_owned()));
    fs::remove_dir_all(&folder)?;
    Ok(())
}

/// `text` without line breaks, again and again.
fn write_line(path: &Path, text: &str, bytes: usize) -> std::io::Result<()> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ") + " ";
    let mut file = BufWriter::new(File::create(path)?);
    let mut written = 0;
    while written < bytes {
        file.write_all(text.as_bytes())?;
        written += text.len();
    }
    file.flush()
}

/// The most memory this process ever held, as Linux says it.
fn peak() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find(|line| line.starts_with("VmHWM")).map(str::to_owned)
}
