//! Short names: of runs in tables and legends, and of hashes.

use std::path::Path;

/// The most runs that are shown together: a reader could not keep more apart by a letter and a color each.
pub const MOST_RUNS: usize = 16;
/// The most characters of a run's name in a legend.
const NAME: usize = 24;
/// A word of at least so many hexadecimal digits is a hash: a commit's has the fewest.
const LEAST: usize = 40;
/// How many characters of a hash are shown.
const HASH: usize = 12;

/// The letter that stands for the run at `place`, from 0, since names can be long.
pub fn run_letter(place: usize) -> char {
    char::from(b'A' + place as u8)
}

/// The end of the path of a run's folder, as far as a legend has room.
pub fn run_name(folder: &Path) -> String {
    // `.` and `..` have no name of their own.
    let real = folder.file_name().is_none().then(|| folder.canonicalize().ok()).flatten();
    let folder = real.as_deref().unwrap_or(folder);
    let name = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy();
    match name.chars().count() {
        0..=NAME => name.into_owned(),
        letters => format!("…{}", name.chars().skip(letters - NAME + 1).collect::<String>()),
    }
}

/// A run in a legend: its letter and its name.
pub fn run_label(place: usize, folder: &Path) -> String {
    format!("{} {}", run_letter(place), run_name(folder))
}

/// The beginning of a hash, by which people compare two; `None`: the text is no hash.
pub fn short_hash(text: &str) -> Option<&str> {
    let is_hash = text.len() >= LEAST && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then(|| &text[..HASH])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_keep_their_ends_and_hashes_their_beginnings() {
        assert_eq!(run_label(1, Path::new("runs/short")), "B short");
        let here = std::env::current_dir().unwrap();
        assert_eq!(run_name(Path::new(".")), run_name(&here));
        let long = format!("runs/{}-seed-3", "x".repeat(40));
        assert_eq!(run_name(Path::new(&long)), format!("…{}-seed-3", "x".repeat(16)));
        assert_eq!(short_hash(&"0123456789abcdef".repeat(4)), Some("0123456789ab"));
        assert_eq!([short_hash("0123456789ab"), short_hash(&"not a hash ".repeat(6))], [None; 2]);
    }
}
