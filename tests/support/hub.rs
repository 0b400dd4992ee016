//! A hub of one's own: what huggingface.co answers, on this machine, with the faults that networks have.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use serde_json::json;
use sha1::Digest as _;

use crate::Ran;

/// The commit of everything here.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A file of the hub, and what is wrong with it.
#[derive(Clone, Debug, Default)]
pub struct File {
    /// What it holds.
    pub bytes: Vec<u8>,
    /// Lies elsewhere, under its SHA-256, as large files do.
    pub large: bool,
    /// After so many bytes the connection is cut, once each.
    pub cuts: Vec<usize>,
    /// What else goes wrong.
    pub fault: Option<Fault>,
}

/// What goes wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Ranges are not understood: the whole file comes.
    NoRanges,
    /// Other bytes come than the hub says.
    Damaged,
    /// More bytes come than the hub says.
    Longer,
}

/// How the hub itself answers.
#[derive(Clone, Debug, Default)]
pub struct Manners {
    /// The only token that may read.
    pub token: Option<String>,
    /// Its listing says neither lengths nor hashes.
    pub terse: bool,
    /// So many requests for files are told that it is busy.
    pub busy: usize,
}

/// A request that came.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Whether it came to where large files are.
    pub elsewhere: bool,
    /// The path.
    pub path: String,
    /// The range's first byte.
    pub from: usize,
    /// Whether it brought a token.
    pub token: bool,
}

#[derive(Debug, Default)]
struct State {
    name: String,
    files: BTreeMap<String, File>,
    manners: Manners,
    asked: Vec<Asked>,
}

/// Serves one repository, until it is dropped.
#[derive(Debug)]
pub struct Hub {
    state: Arc<Mutex<State>>,
    end: Arc<AtomicBool>,
    itself: SocketAddr,
    elsewhere: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl Hub {
    /// With these files as `name`, which is `owner/name`.
    pub fn new(name: &str, files: impl IntoIterator<Item = (&'static str, File)>) -> Hub {
        let files = files.into_iter().map(|(name, file)| (name.to_owned(), file)).collect();
        let state = State { name: name.to_owned(), files, ..State::default() };
        let (state, end) = (Arc::new(Mutex::new(state)), Arc::new(AtomicBool::new(false)));
        // Another host, as far as a program can see.
        let listeners =
            ["127.0.0.1:0", "127.0.0.1:0"].map(|at| TcpListener::bind(at).expect("a port"));
        let [itself, elsewhere] =
            listeners.each_ref().map(|at| at.local_addr().expect("it is bound"));
        let serve = |(index, listener): (usize, TcpListener)| {
            let (state, end) = (state.clone(), end.clone());
            thread::spawn(move || {
                for stream in listener.incoming() {
                    if end.load(Ordering::SeqCst) {
                        return;
                    }
                    // A client that hangs up is his own business.
                    let _ =
                        stream.and_then(|stream| answer(&stream, &state, index == 1, elsewhere));
                }
            })
        };
        let threads = listeners.into_iter().enumerate().map(serve).collect();
        Hub { state, end, itself, elsewhere, threads }
    }

    /// For `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.itself)
    }

    /// Runs a command that knows no other hub, and has its home in `home`.
    pub fn to(&self, command: &mut Command, home: &Path) -> Ran {
        command.env("HF_ENDPOINT", self.endpoint()).env("HF_HOME", home);
        command.env("NO_PROXY", "127.0.0.1");
        for name in ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE"] {
            command.env_remove(name);
        }
        Ran::of(&command.output().expect("the program starts"))
    }

    /// Changes a file.
    pub fn file(&self, name: &str, change: impl FnOnce(&mut File)) {
        change(self.state().files.entry(name.to_owned()).or_default());
    }

    /// Changes how it answers.
    pub fn manners(&self, change: impl FnOnce(&mut Manners)) {
        change(&mut self.state().manners);
    }

    /// What was asked since the last time.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.state().asked)
    }

    fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.end.store(true, Ordering::SeqCst);
        for at in [self.itself, self.elsewhere] {
            // Wakes it up.
            let _ = TcpStream::connect(at);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl File {
    /// A small file.
    pub fn small(bytes: impl Into<Vec<u8>>) -> File {
        File { bytes: bytes.into(), ..File::default() }
    }

    /// A large one.
    pub fn large(bytes: impl Into<Vec<u8>>) -> File {
        File { large: true, ..File::small(bytes) }
    }

    /// The file at `path`, large if it holds weights.
    pub fn read(path: &Path) -> File {
        let bytes = std::fs::read(path).expect("a file");
        let large = path.extension().is_some_and(|ending| ending == "safetensors");
        File { large, ..File::small(bytes) }
    }

    /// What the cache calls it.
    pub fn hash(&self) -> String {
        let digits = |hash: &[u8]| {
            hash.iter().fold(String::new(), |mut text, byte| {
                write!(text, "{byte:02x}").expect("a text");
                text
            })
        };
        if self.large {
            return digits(&sha2::Sha256::digest(&self.bytes));
        }
        let mut hasher = sha1::Sha1::new();
        hasher.update(format!("blob {}\0", self.bytes.len()));
        hasher.update(&self.bytes);
        digits(&hasher.finalize())
    }
}

fn request(stream: &TcpStream, elsewhere: bool) -> std::io::Result<(Asked, Option<String>)> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut from, mut token) = (0, None);
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let range = value.trim_start_matches("bytes=").trim_end_matches('-');
                from = range.parse().unwrap_or(0);
            }
            "authorization" => token = value.strip_prefix("Bearer ").map(str::to_owned),
            _ => {}
        }
    }
    Ok((Asked { elsewhere, path, from, token: token.is_some() }, token))
}

fn answer(
    stream: &TcpStream,
    state: &Mutex<State>,
    elsewhere: bool,
    other: SocketAddr,
) -> std::io::Result<()> {
    let (asked, token) = request(stream, elsewhere)?;
    let mut state = state.lock();
    state.asked.push(asked.clone());
    let bare = |status: &str, headers: &str| {
        send(stream, &format!("HTTP/1.1 {status}\r\n{headers}Content-Length: 0\r\n"), b"")
    };
    if state.manners.busy > 0 && !asked.path.starts_with("/api/") {
        state.manners.busy -= 1;
        return bare("503 Service Unavailable", "");
    }
    if !elsewhere && state.manners.token.is_some() && state.manners.token != token {
        return bare("401 Unauthorized", "X-Error-Code: GatedRepo\r\n");
    }
    let listing = format!("/api/models/{}/revision/", state.name);
    let resolve = format!("/{}/resolve/{COMMIT}/", state.name);
    if elsewhere {
        let hash = asked.path.trim_start_matches('/');
        let Some(file) = state.files.values_mut().find(|file| file.hash() == hash) else {
            return bare("404 Not Found", "");
        };
        return serve(stream, file, asked.from, "");
    }
    if let Some(rest) = asked.path.strip_prefix(&listing) {
        let revision = rest.split('?').next().unwrap_or_default();
        if ![COMMIT, "main", "v1"].contains(&revision) {
            return bare("404 Not Found", "X-Error-Code: RevisionNotFound\r\n");
        }
        let body = described(&state).to_string();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", body.len());
        return send(stream, &head, body.as_bytes());
    }
    let Some(file) = asked.path.strip_prefix(&resolve).and_then(|name| state.files.get_mut(name))
    else {
        return bare("404 Not Found", "X-Error-Code: RepoNotFound\r\n");
    };
    let hash = file.hash();
    if file.large {
        let headers = format!("X-Linked-Etag: \"{hash}\"\r\nLocation: http://{other}/{hash}\r\n");
        return bare("302 Found", &headers);
    }
    serve(stream, file, asked.from, &format!("ETag: \"{hash}\"\r\n"))
}

fn described(state: &State) -> serde_json::Value {
    let files = state.files.iter().map(|(name, file)| {
        let (bytes, hash) = (file.bytes.len(), file.hash());
        match (state.manners.terse, file.large) {
            (true, _) => json!({"rfilename": name}),
            (false, true) => json!({
                "rfilename": name, "size": bytes, "blobId": "ab".repeat(20),
                "lfs": {"sha256": hash, "size": bytes, "pointerSize": 131},
            }),
            (false, false) => json!({"rfilename": name, "size": bytes, "blobId": hash}),
        }
    });
    json!({"id": state.name, "sha": COMMIT, "siblings": files.collect::<Vec<_>>(), "private": false})
}

/// The file from byte `from` on, with its faults.
fn serve(stream: &TcpStream, file: &mut File, from: usize, headers: &str) -> std::io::Result<()> {
    let mut bytes = file.bytes.clone();
    if file.fault == Some(Fault::Damaged) {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    }
    if file.fault == Some(Fault::Longer) {
        bytes.extend([7; 100]);
    }
    let all = bytes.len();
    let from = if file.fault == Some(Fault::NoRanges) { 0 } else { from };
    if from >= all && from > 0 {
        let head =
            format!("HTTP/1.1 416 No\r\nContent-Range: bytes */{all}\r\nContent-Length: 0\r\n");
        return send(stream, &head, b"");
    }
    let left = all - from;
    let status = if from > 0 {
        format!("206 Partial Content\r\nContent-Range: bytes {from}-{}/{all}", all - 1)
    } else {
        "200 OK".to_owned()
    };
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {left}\r\n");
    let end = if file.cuts.is_empty() { all } else { file.cuts.remove(0).clamp(from, all) };
    send(stream, &head, &bytes[from..end])
}

fn send(mut stream: &TcpStream, head: &str, body: &[u8]) -> std::io::Result<()> {
    stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes())?;
    stream.write_all(body)?;
    stream.flush()?;
    stream.shutdown(Shutdown::Write)
}
