//! Running a command under watch: its words, its end, its time and memory.

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::scene::{SECRET, Scene};

/// Bytes of output that are kept; nothing has a reason to say more.
const KEPT: u64 = 1 << 20;
/// Bytes of a line of output: an error message that quotes something ends before.
const LINE: usize = 4096;
/// How often a command is looked at.
const GLANCE: Duration = Duration::from_millis(2);

/// What came of a case.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// The exit code; `None`: a signal ended it, or it had to be ended.
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) took: Duration,
    /// The most memory, bytes.
    pub(super) memory: u64,
    /// What is wrong.
    pub(super) wrong: Vec<String>,
}

impl Answer {
    /// Of `deed`, called so many times.
    pub(super) fn of_repeated(times: u64, deed: impl Fn(u64)) -> Answer {
        let began = Instant::now();
        let mut answer = Answer { code: Some(0), ..Answer::default() };
        for number in 0..times {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| deed(number))) {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                answer.wrong(format!("time {number}: {}", text.unwrap_or("failed")));
            }
        }
        answer.took = began.elapsed();
        answer
    }

    pub(super) fn wrong(&mut self, what: String) {
        self.wrong.push(what);
    }

    pub(super) fn said(&self, word: &str) -> bool {
        self.stdout.contains(word) || self.stderr.contains(word)
    }

    pub(super) fn text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    /// Holds it to what is asked of every case.
    pub(super) fn hold_to_rules(&mut self, scene: &Scene, memory: u64) {
        let mut wrong = Vec::new();
        let text = self.text();
        let hostile = |letter: &char| {
            (letter.is_control() && !"\n\t".contains(*letter))
                || ('\u{202a}'..='\u{202e}').contains(letter)
                || ('\u{2066}'..='\u{2069}').contains(letter)
        };
        wrong.extend(text.chars().find(hostile).map(|letter| format!("prints {letter:?}")));
        wrong.extend(text.contains(SECRET).then(|| "shows others' content".to_owned()));
        let panicked = text.contains("panicked at") || text.contains("RUST_BACKTRACE");
        wrong.extend(panicked.then(|| "panicked".to_owned()));
        let longest = self.stderr.lines().map(str::len).max().unwrap_or(0);
        wrong.extend((longest > LINE).then(|| format!("a line of {longest} bytes")));
        // A process begins with the memory of the one that starts it.
        if self.memory > memory.max(own_memory()) {
            wrong.push(format!("{} MB", self.memory >> 20));
        }
        wrong.extend(scene.touched());
        self.wrong.extend(wrong);
    }
}

/// Runs `command` for at most so many seconds.
#[expect(
    clippy::zombie_processes,
    reason = "it is waited for by a call that tells its memory, too"
)]
pub(super) fn answer(mut command: Command, seconds: u64) -> Answer {
    use std::os::unix::process::CommandExt;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let began = Instant::now();
    let mut child = command.spawn().expect("a shell");
    let stdout = child.stdout.take().map(kept);
    let stderr = child.stderr.take().map(kept);
    let limit = Duration::from_secs(seconds);
    let mut wrong = Vec::new();
    let mut ended = ended(child.id(), libc::WNOHANG);
    while ended.is_none() {
        if began.elapsed() > limit {
            wrong.push(format!("took over {seconds} s"));
            // SAFETY: a call without memory; the group is this child's, which has not been waited for.
            unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
            ended = self::ended(child.id(), 0);
            break;
        }
        thread::sleep(GLANCE);
        ended = self::ended(child.id(), libc::WNOHANG);
    }
    let took = began.elapsed();
    let (status, memory) = ended.expect("it was waited for");
    let text = |thread: Option<JoinHandle<String>>| thread.and_then(|thread| thread.join().ok());
    let [stdout, stderr] = [stdout, stderr].map(|thread| text(thread).unwrap_or_default());
    // A shell says 128 and the signal's number of a program that one ended.
    let code = status.code().filter(|code| *code <= 128);
    Answer { code, stdout, stderr, took, memory, wrong }
}

/// What comes, up to a bound; the rest is read and forgotten.
fn kept(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What cannot be read any more has ended.
        let _ = from.by_ref().take(KEPT).read_to_end(&mut bytes);
        let _ = std::io::copy(&mut from, &mut std::io::sink());
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The end of the child `id` and the most memory that it had, if it has ended.
fn ended(id: u32, options: i32) -> Option<(ExitStatus, u64)> {
    use std::os::unix::process::ExitStatusExt;
    let mut status = 0;
    // SAFETY: all of it is plain numbers, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both places live during the call.
    let found = unsafe { libc::wait4(id as i32, &raw mut status, options, &raw mut usage) };
    (found == id as i32).then(|| (ExitStatus::from_raw(status), bytes(&usage)))
}

fn own_memory() -> u64 {
    // SAFETY: as above.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the place lives during the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    bytes(&usage)
}

fn bytes(usage: &libc::rusage) -> u64 {
    let unit = if cfg!(target_os = "macos") { 1 } else { 1024 };
    usage.ru_maxrss as u64 * unit
}
