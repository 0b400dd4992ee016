//! Texts in, tokens out: folders, lines, broken files, altered caches, two builders at once.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use annulus_data::{
    Cache, DataError, Excluded, Progress, Records, Texts, Tokenizer, bigram_entropy, list,
};
use tempfile::TempDir;

/// A scratch folder with the inputs of a test and its caches.
struct Scratch(TempDir);

impl Scratch {
    fn new() -> Scratch {
        Scratch(tempfile::tempdir().unwrap())
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }
    fn open(&self, input: &Path, jsonl: bool) -> Result<Cache, DataError> {
        let records = if jsonl { Records::Lines } else { Records::Text };
        self.open_with(input, records, false, &mut |_| {})
    }
    fn open_with(
        &self,
        input: &Path,
        records: Records,
        verify: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Cache, DataError> {
        let inputs = [input.to_owned()];
        let texts = Texts::new(&inputs, records, &Tokenizer::Bytes);
        Cache::open(&texts, &self.path("cache"), verify, progress)
    }
    /// Whether opening builds the cache.
    fn builds(&self, input: &Path) -> bool {
        let mut built = false;
        let mut progress = |now| built |= matches!(now, Progress::Reading { .. });
        self.open_with(input, Records::Text, false, &mut progress).unwrap();
        built
    }
    fn error(&self, input: &Path, jsonl: bool) -> String {
        let error = self.open(input, jsonl).unwrap_err();
        assert!(error.hint().is_some());
        error.to_string().replace(self.0.path().to_str().unwrap(), "…")
    }
}

fn all(cache: &Cache) -> Vec<u32> {
    let mut ids = vec![0; cache.tokens() as usize];
    cache.read(0, &mut ids).unwrap();
    ids
}

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Makes a file's last change old enough to be told from the next by its time.
fn age(path: &Path) {
    let past = SystemTime::now() - Duration::from_secs(60);
    File::options().write(true).open(path).unwrap().set_modified(past).unwrap();
}

#[test]
fn a_text_is_its_bytes() {
    let scratch = Scratch::new();
    let text = "Grüße 🦀\0\r\n".repeat(200_000);
    let cache = scratch.open(&scratch.write("a.txt", &text), false).unwrap();
    assert_eq!(cache.tokens(), text.len() as u64);
    assert_eq!(all(&cache), ids(&text));
    assert_eq!((cache.documents(), cache.vocabulary()), (&[0][..], 0xf0 + 1));
    let mut some = [0; 4];
    cache.read(2, &mut some).unwrap();
    assert_eq!(some.to_vec(), ids("üß"));
}

#[test]
fn a_folder_is_its_texts_in_name_order() {
    let scratch = Scratch::new();
    for (name, text) in [
        ("in/b.txt", "second"),
        ("in/a/z.md", "first"),
        ("in/c.rs", "third"),
        ("in/empty.txt", ""),
        ("in/picture.png", "no"),
        ("in/.hidden/d.txt", "no"),
        ("in/built/CACHEDIR.TAG", "no"),
        ("in/built/e.txt", "no"),
    ] {
        scratch.write(name, text);
    }
    let cache = scratch.open(&scratch.path("in"), false).unwrap();
    let wanted = [ids("first"), vec![256], ids("second"), vec![256], ids("third")].concat();
    assert_eq!(all(&cache), wanted);
    // What stands between documents ends the one before.
    assert_eq!(cache.documents(), [0, 6, 13]);
    assert_eq!(cache.vocabulary(), 257);
}

#[test]
fn lines_are_documents() {
    let scratch = Scratch::new();
    let lines = "{\"text\": \"one\\n\"}\n\n  \r\n{\"id\": [1], \"text\": \"zw\\u00f6lf\"}\n{\"text\": \"\"}";
    let cache = scratch.open(&scratch.write("a.jsonl", lines), true).unwrap();
    assert_eq!(all(&cache), [ids("one\n"), vec![256], ids("zwölf")].concat());
    assert_eq!(cache.documents(), [0, 5]);
}

#[test]
fn wrong_lines_are_named() {
    let scratch = Scratch::new();
    for (line, message) in [
        ("{\"text\": 1}", "`text` is the number 1, not a string"),
        ("{\"txt\": \"a\"}", "missing field `text` at column 12"),
        ("{\"text\": \"a\"", "the line ends inside an object"),
        ("plain", "not a JSON object"),
        ("[\"a\"]", "not a JSON object"),
        ("{\"text\": \"a\"} x", "trailing characters at column 15"),
    ] {
        let path = scratch.write("a.jsonl", format!("{{\"text\": \"good\"}}\n\n{line}"));
        assert_eq!(scratch.error(&path, true), format!("`…/a.jsonl`, line 3: {message}"));
    }
}

#[test]
fn wrong_bytes_are_named_wherever_they_lie() {
    let scratch = Scratch::new();
    // A character torn between two blocks that are read at a time is none of them.
    let block = 1 << 20;
    for at in [0, 5, block - 2, block - 1, block, block + 1, 2 * block] {
        let mut text = "é".repeat(block + 8).into_bytes();
        let at = at & !1;
        text[at] = 0xff;
        let path = scratch.write("a.txt", &text);
        assert_eq!(scratch.error(&path, false), format!("`…/a.txt` is not UTF-8 at byte {at}"));
    }
    for end in [0, block - 1] {
        let path = scratch.write("a.txt", [&vec![b'a'; end][..], &[0xf0, 0x9f, 0xa6]].concat());
        assert_eq!(scratch.error(&path, false), format!("`…/a.txt` is not UTF-8 at byte {end}"));
    }
    let text = format!("a{}", "🦀".repeat(block / 2));
    let cache = scratch.open(&scratch.write("b.txt", &text), false).unwrap();
    assert_eq!(all(&cache), ids(&text));
}

#[test]
fn what_is_not_there_is_named() {
    let scratch = Scratch::new();
    let message = "cannot read `…/none`: No such file or directory (os error 2)";
    assert_eq!(scratch.error(&scratch.path("none"), false), message);
    let message = "no file in `…` ends in `.jsonl`, `.parquet`";
    assert_eq!(scratch.error(scratch.0.path(), true), message);
    let message = "`/dev/zero` is not a regular file";
    assert_eq!(scratch.error(Path::new("/dev/zero"), false), message);
    scratch.write("cache", "a file in the way");
    let message = "cannot write `…/cache`: File exists (os error 17)";
    assert_eq!(scratch.error(&scratch.write("a.txt", "a"), false), message);
}

#[test]
fn an_empty_text_is_an_empty_cache() {
    let scratch = Scratch::new();
    let cache = scratch.open(&scratch.write("a.txt", ""), false).unwrap();
    assert_eq!((cache.tokens(), cache.documents(), cache.vocabulary()), (0, &[][..], 0));
}

#[test]
fn a_cache_is_built_once_and_anew_for_other_contents() {
    let scratch = Scratch::new();
    let path = scratch.write("a.txt", "some text");
    assert!(scratch.builds(&path));
    assert!(!scratch.builds(&path));
    // The same contents elsewhere are the same tokens.
    assert!(!scratch.builds(&scratch.write("b.txt", "some text")));
    let before = scratch.open(&path, false).unwrap().fingerprint().to_owned();
    // As long as before, changed at once.
    scratch.write("a.txt", "sOme text");
    assert!(scratch.builds(&path));
    assert_ne!(scratch.open(&path, false).unwrap().fingerprint(), before);
}

#[test]
fn an_altered_cache_is_built_anew() {
    let scratch = Scratch::new();
    let path = scratch.write("a.txt", "some text ".repeat(100));
    let cache = scratch.open(&path, false).unwrap();
    let (file, good) = (cache.path().to_owned(), fs::read(cache.path()).unwrap());
    drop(cache);
    for old in [false, true] {
        for at in (0..good.len()).step_by(37) {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            fs::remove_file(&file).unwrap();
            fs::write(&file, &bad).unwrap();
            if old {
                age(&file);
            }
            assert!(scratch.builds(&path), "byte {at}");
        }
        for end in [0, 10, 255, 256, 1000, good.len() - 1] {
            fs::remove_file(&file).unwrap();
            fs::write(&file, &good[..end]).unwrap();
            assert!(scratch.builds(&path), "cut to {end}");
        }
        assert_eq!(fs::read(&file).unwrap(), good);
    }
}

#[test]
fn builders_at_once_build_one_whole_cache() {
    let scratch = Scratch::new();
    let text = "0123456789".repeat(300_000);
    let path = scratch.write("a.txt", &text);
    let built: Vec<bool> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| scratch.builds(&path))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(built.iter().filter(|&&built| built).count(), 1);
    assert_eq!(all(&scratch.open(&path, false).unwrap()), ids(&text));
}

#[test]
fn what_a_crash_leaves_is_built_over() {
    let scratch = Scratch::new();
    let path = scratch.write("a.txt", "some text");
    let file = scratch.open(&path, false).unwrap().path().to_owned();
    fs::rename(&file, file.with_extension("partial")).unwrap();
    fs::write(file.with_extension("partial"), vec![7; 10_000]).unwrap();
    assert!(scratch.builds(&path));
    assert_eq!(all(&scratch.open(&path, false).unwrap()), ids("some text"));
}

#[test]
fn a_cache_that_changes_while_it_is_read_is_an_error() {
    let scratch = Scratch::new();
    let path = scratch.write("a.txt", "some text ".repeat(100));
    let cache = scratch.open(&path, false).unwrap();
    let (file, before) = (cache.path().to_owned(), all(&cache));
    let good = fs::read(&file).unwrap();
    // Another name for the same file changes a time of it, and nothing else.
    fs::hard_link(&file, scratch.path("link")).unwrap();
    assert_eq!(all(&cache), before);
    let mut bad = good.clone();
    bad[300] ^= 1;
    let mut ids = [0; 10];
    for bad in [&bad, &good[..good.len() - 1], &good[..280], &[]] {
        fs::write(&file, bad).unwrap();
        let error = cache.read(0, &mut ids).unwrap_err();
        assert!(matches!(error, DataError::Changed { .. }), "{error}");
    }
    fs::write(&file, &good).unwrap();
    assert_eq!(all(&cache), before);
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let scratch = Scratch::new();
    let path = scratch.write("a.txt", "some text");
    let file = scratch.open(&path, false).unwrap().path().to_owned();
    let stamps = fs::read_dir(scratch.path("cache")).unwrap().map(|entry| entry.unwrap().path());
    let stamps = stamps.into_iter().find(|path| path.extension().unwrap() == "stamps").unwrap();
    for path in [&file, &stamps, &scratch.path("b.jsonl"), &scratch.path("c.parquet")] {
        let _ = fs::remove_file(path);
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    }
    for input in ["a.txt", "b.jsonl", "c.parquet"] {
        let error = scratch.open(&scratch.path(input), input != "a.txt").unwrap_err();
        assert!(matches!(error, DataError::NotAFile { .. }), "{input}: {error}");
    }
    let error = Cache::open_file(&file).unwrap_err();
    assert!(matches!(error, DataError::NotAFile { .. }), "{error}");
    for path in [&file, &stamps] {
        fs::remove_file(path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path).unwrap();
        scratch.open(&scratch.path("a.txt"), false).unwrap_err();
    }
}

#[test]
fn another_process_that_builds_the_cache_is_waited_for_by_its_number() {
    let scratch = Scratch::new();
    let path = scratch.write("a.txt", "some text");
    let file = scratch.open(&path, false).unwrap().path().to_owned();
    fs::remove_file(&file).unwrap();
    let lock = File::options().read(true).write(true).open(file.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    fs::write(file.with_extension("lock"), "4711\n").unwrap();
    let mut lock = Some(lock);
    let mut told = Vec::new();
    let mut progress = |now| {
        told.push(now);
        lock = None;
    };
    let cache = scratch.open_with(&path, Records::Text, false, &mut progress).unwrap();
    assert_eq!(told[0], Progress::Waiting { process: Some(4711) });
    assert!(matches!(told[1..], [Progress::Reading { done: 9, total: 9 }]), "{told:?}");
    assert_eq!(all(&cache), ids("some text"));
}

#[test]
fn what_runs_write_and_what_is_excluded_is_no_text() {
    let scratch = Scratch::new();
    for name in
        ["in/a.txt", "in/runs/old/experiment.yaml", "in/runs/old/run.lock", "in/runs/notes.md"]
    {
        scratch.write(name, name);
    }
    let own = scratch.write("in/out/experiment.yaml", "own").parent().unwrap().to_owned();
    std::os::unix::fs::symlink(own.join("experiment.yaml"), scratch.path("in/link.yaml")).unwrap();
    let inputs = [scratch.path("in")];
    // By another path to it.
    let excluded = Excluded::new([scratch.path("in/runs/../out"), scratch.path("none")]);
    let mut texts = Texts::new(&inputs, Records::Text, &Tokenizer::Bytes);
    texts.excluded = &excluded;
    let cache = Cache::open(&texts, &scratch.path("cache"), false, &mut |_| {}).unwrap();
    let wanted = [ids("in/a.txt"), vec![256], ids("in/runs/notes.md")].concat();
    assert_eq!(all(&cache), wanted);
    let left_out = list(&inputs, Records::Text, &excluded).unwrap().left_out;
    let left_out: Vec<_> = left_out
        .iter()
        .map(|path| path.strip_prefix(&inputs[0]).unwrap().to_str().unwrap())
        .collect();
    assert_eq!(left_out, ["link.yaml", "out", "runs/old"]);
}

#[test]
fn long_lines_are_the_tokens_of_their_text_up_to_the_limit() {
    let scratch = Scratch::new();
    let text = "0123456789".repeat(500_000);
    let line = format!("{{\"text\": \"{text}\\n\"}}\n{{\"text\": \"{text}\"}}");
    let cache = scratch.open(&scratch.write("a.jsonl", line), true).unwrap();
    assert_eq!(all(&cache), [ids(&text), ids("\n"), vec![256], ids(&text)].concat());
    let line = vec![b' '; (1 << 26) + 1];
    let message = "`…/a.jsonl`, line 1: over 67108864 bytes long, the limit of a line";
    let file = scratch.write("a.jsonl", line);
    assert_eq!(scratch.error(&file, true), message);
    assert!(scratch.open(&file, true).unwrap_err().hint().unwrap().contains("`format: text`"));
}

#[test]
fn a_temporary_cache_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let inputs = [scratch.write("a.txt", "some text")];
    let texts = Texts::new(&inputs, Records::Text, &Tokenizer::Bytes);
    let cache = Cache::temporary(&texts, &mut |_| {}).unwrap();
    assert_eq!(all(&cache), ids("some text"));
    assert!(cache.path().is_dir());
}

#[test]
fn bigram_entropy_is_that_of_its_definition() {
    let scratch = Scratch::new();
    let coin = scratch.open(&scratch.write("a.txt", "abaabbb".repeat(30_000)), false).unwrap();
    // Pairs of a period: aa, bb, bb, ab, ab, ba, ba (the last across the seam).
    let wanted = (1.0 * 3f64.ln() + 2.0 * 1.5f64.ln() + 2.0 * 2f64.ln() * 2.0) / 7.0;
    let found = bigram_entropy(&coin, 0, coin.tokens()).unwrap();
    assert!((found - wanted).abs() < 1e-4, "{found} {wanted}");
    for (start, end) in [(0, 0), (0, 1), (5, 2), (u64::MAX - 1, u64::MAX)] {
        assert!(bigram_entropy(&coin, start, end).unwrap().abs() < 1e-12);
    }
}

/// Nobody makes folders there, not even root.
#[cfg(target_os = "linux")]
#[test]
fn where_nobody_may_write_a_cache_has_no_name() {
    let scratch = Scratch::new();
    let inputs = [scratch.write("a.txt", "some text")];
    let texts = Texts::new(&inputs, Records::Text, &Tokenizer::Bytes);
    let folder = Path::new("/sys/no-caches-here");
    let cache = Cache::open(&texts, folder, false, &mut |_| {}).unwrap();
    assert_eq!(all(&cache), ids("some text"));
    assert!(!folder.exists());
}
