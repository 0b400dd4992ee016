//! Another program that is measured: started once, then asked for one sample after another.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::machine;
use crate::subject::{Fields, Sample, Side};

/// The time that a program may take to end after `quit`.
const PATIENCE: Duration = Duration::from_secs(30);
/// The interval at which it is checked meanwhile.
const GLANCE: Duration = Duration::from_millis(20);

/// A running program that answers `go` with `{"time_s": t}`.
pub(crate) struct Peer {
    command: String,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The first line, with figures of its warm-up where it gives them.
    pub(crate) ready: Sample,
}

impl Peer {
    /// Starts `command` with the shell and waits until it is ready.
    pub(crate) fn start(command: &str) -> Result<Peer> {
        let mut child = Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start `{command}`"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("`{command}` has no input or no output");
        };
        let mut peer = Peer {
            command: command.to_owned(),
            child,
            input: Some(input),
            output: BufReader::new(output),
            ready: Sample::default(),
        };
        peer.ready.fields = peer.answer("ready")?;
        Ok(peer)
    }

    /// The next line that is an object with `key`; other lines are skipped.
    fn answer(&mut self, key: &str) -> Result<Fields> {
        let mut line = String::new();
        while self.output.read_line(&mut line)? > 0 {
            if let Ok(Value::Object(fields)) = serde_json::from_str(&line)
                && fields.contains_key(key)
            {
                return Ok(fields);
            }
            line.clear();
        }
        let status = self.child.wait()?;
        bail!("`{}` ended ({status}) before it said `{key}`", self.command)
    }
}

impl Side for Peer {
    fn sample(&mut self) -> Result<Sample> {
        if let Some(input) = &mut self.input {
            let asked = input.write_all(b"go\n").and_then(|()| input.flush());
            asked.with_context(|| format!("`{}` reads no more", self.command))?;
        }
        let fields = self.answer("time_s")?;
        match fields["time_s"].as_f64() {
            Some(seconds) if seconds > 0.0 => Ok(Sample { seconds, fields }),
            _ => bail!("`{}`: `time_s` is {}, no time", self.command, fields["time_s"]),
        }
    }

    /// Seconds of processor time, including the programs it started.
    fn processor_seconds(&self) -> f64 {
        machine::processor_seconds_of_tree(self.child.id())
    }
}

impl Drop for Peer {
    /// Tells the program to quit, and ends it if it does not.
    fn drop(&mut self) {
        if let Some(mut input) = self.input.take() {
            // It may be gone already; then there is nothing to tell.
            let _ = input.write_all(b"quit\n");
        }
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(GLANCE),
                _ => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
