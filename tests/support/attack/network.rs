//! Hubs that lie, stall, and never end: the client always does, or is stopped by the first signal.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use serde_json::json;

use super::scene::Scene;
use super::{Case, case};

const REFUSED: &[i32] = &[2, 3];
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TRAIN: &str = "HF_ENDPOINT=$(cat hub) HF_HOME=$PWD/hf NO_PROXY=127.0.0.1 annulus train tuned.yaml model.path=hf://a/b";
/// The first signal ends it, whatever it waits for; before it asks the hub, it may not have begun to heed signals.
const STOPPED: &str = "HF_ENDPOINT=$(cat hub) HF_HOME=$PWD/hf NO_PROXY=127.0.0.1 \"$ANNULUS\" train tuned.yaml model.path=hf://a/b & while [ ! -e asked ] && kill -0 $! 2>/dev/null; do sleep 0.1; done; kill -TERM $!; wait $!";

/// Seconds after which a download without progress has ended.
const PATIENCE: u64 = 150;

pub(super) const CASES: &[Case] = &[
    case("C6 a listing without an end", TRAIN, REFUSED, &[]).made(|s| serve(s, |path, out| {
        if is_listing(path) { endless(out) } else { absent(out) }
    })),
    case("C6 a listing of rubbish", TRAIN, REFUSED, &[]).made(|s| serve(s, |_, out| answer(out, "200 OK", "", b"\x1b[31m{{{"))),
    case("C6 a commit that colours the terminal", TRAIN, REFUSED, &[]).made(|s| serve(s, |_, out| {
        answer(out, "200 OK", "", json!({"sha": "\u{1b}[31m\u{202e}", "siblings": []}).to_string().as_bytes())
    })),
    case("C6 names that lead out of the cache", TRAIN, REFUSED, &[]).made(|s| serve(s, |path, out| {
        if is_listing(path) { listed(out, &["../../../../others/secret", "config.json"], Some(9)) } else { answer(out, "200 OK", "", b"overwrite") }
    })),
    case("C6 files without an end, of no size", TRAIN, REFUSED, &[]).made(|s| serve(s, |path, out| {
        if is_listing(path) { listed(out, &["config.json", "model.safetensors"], None) } else { endless(out) }
    })).within(60),
    case("C6 files without an end, of a huge size", TRAIN, REFUSED, &[]).made(|s| serve(s, |path, out| {
        if is_listing(path) { listed(out, &["config.json", "model.safetensors"], Some(1_000_000_000_000_000)) } else { endless(out) }
    })).within(60),
    case("C6 a range that nobody asked for, for ever", TRAIN, REFUSED, &[]).made(|s| serve(s, |path, out| {
        if is_listing(path) { return listed(out, &["config.json", "model.safetensors"], Some(1000)) }
        answer(out, "206 Partial Content", "Content-Range: bytes 7-8/1000\r\n", b"x")
    })).within(PATIENCE),
    case("C6 no such range, for ever", TRAIN, REFUSED, &[]).made(|s| serve(s, |path, out| {
        if is_listing(path) { return listed(out, &["config.json", "model.safetensors"], Some(1000)) }
        answer(out, "416 Range Not Satisfiable", "Content-Range: bytes */1000\r\n", b"x")
    })).within(PATIENCE),
    case("C6 a redirection to itself", TRAIN, REFUSED, &[]).made(|s| serve(s, |path, out| {
        let location = format!("Location: {path}\r\n");
        answer(out, "302 Found", &location, b"")
    })).within(60),
    case("C6 one byte a second", TRAIN, REFUSED, &[]).made(|s| serve(s, |path, out| {
        if is_listing(path) { listed(out, &["config.json", "model.safetensors"], Some(1000)) } else { trickle(out) }
    })).within(PATIENCE),
    case("C6 stopped while the hub is silent", STOPPED, &[75, 130], &[]).made(|s| serve(s, |_, out| silent(out))).within(15).short(),
    case("C6 stopped while a listing trickles", STOPPED, &[75, 130], &[]).made(|s| serve(s, |_, out| trickle(out))).within(15),
    case("C6 stopped while a description trickles", STOPPED, &[75, 130], &[]).made(|s| serve(s, |path, out| {
        if is_listing(path) { listed(out, &["config.json", "model.safetensors"], Some(1000)) } else { trickle(out) }
    })).within(15),
    case("C6 nobody is there", "HF_ENDPOINT=http://127.0.0.1:9 HF_HOME=$PWD/hf annulus train tuned.yaml model.path=hf://a/b", REFUSED, &["127.0.0.1:9"]).within(PATIENCE),
    case("C6 no home at all", "unset HOME HF_HOME; HF_ENDPOINT=http://127.0.0.1:9 annulus train tuned.yaml model.path=hf://a/b", REFUSED, &[]).within(PATIENCE),
    case("C6 a token over plain http", "HF_TOKEN=hf_aaaaaaaaaaaaaaaaaaaa HF_ENDPOINT=$(cat hub) HF_HOME=$PWD/hf NO_PROXY=127.0.0.1 annulus train tuned.yaml model.path=hf://a/b", REFUSED, &["http"])
        .made(|s| serve(s, |_, out| absent(out))),
];

/// Answers every request so, from now on, at the address in the file `hub`; the file `asked` is there once one has come.
fn serve(scene: &Scene, answer: fn(&str, &mut TcpStream) -> std::io::Result<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound");
    scene.write("hub", format!("http://{address}"));
    let asked = scene.folder().join("asked");
    // It ends with this process.
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let asked = asked.clone();
            thread::spawn(move || {
                // A client that hangs up is his own business, and so is one whose folder has gone.
                let _ = path(&stream).and_then(|path| {
                    std::fs::write(asked, "")?;
                    answer(&path, &mut stream)
                });
            });
        }
    });
}

fn path(stream: &TcpStream) -> std::io::Result<String> {
    let mut lines = BufReader::new(stream.take(1 << 16)).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    Ok(first.split(' ').nth(1).unwrap_or_default().to_owned())
}

fn is_listing(path: &str) -> bool {
    path.starts_with("/api/")
}

fn answer(out: &mut TcpStream, status: &str, headers: &str, body: &[u8]) -> std::io::Result<()> {
    let length = body.len();
    write!(
        out,
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    out.write_all(body)
}

fn absent(out: &mut TcpStream) -> std::io::Result<()> {
    answer(out, "404 Not Found", "", b"")
}

fn listed(out: &mut TcpStream, names: &[&str], size: Option<u64>) -> std::io::Result<()> {
    let file = |name: &&str| json!({"rfilename": name, "size": size, "blobId": "ab".repeat(20)});
    let files: Vec<_> = names.iter().map(file).collect();
    answer(out, "200 OK", "", json!({"sha": COMMIT, "siblings": files}).to_string().as_bytes())
}

fn begin(out: &mut TcpStream) -> std::io::Result<()> {
    let etag = "ab".repeat(20);
    write!(out, "HTTP/1.1 200 OK\r\nETag: \"{etag}\"\r\nConnection: close\r\n\r\n")
}

fn endless(out: &mut TcpStream) -> std::io::Result<()> {
    begin(out)?;
    loop {
        out.write_all(&[b' '; 1 << 13])?;
    }
}

fn trickle(out: &mut TcpStream) -> std::io::Result<()> {
    begin(out)?;
    loop {
        out.write_all(b" ")?;
        thread::sleep(Duration::from_secs(1));
    }
}

fn silent(out: &mut TcpStream) -> std::io::Result<()> {
    thread::sleep(Duration::from_secs(600));
    out.flush()
}
