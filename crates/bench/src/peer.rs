//! Another program that is measured: started once, then asked for one sample after the other.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::machine;
use crate::subject::{Fields, Sample};

/// How long a program may take to end after `quit`.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked at meanwhile.
const GLANCE: Duration = Duration::from_millis(20);

/// A running program that answers `go` with `{"time_s": t}`.
pub(crate) struct Peer {
    command: String,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Its first line: what it found while warming up, if it says so.
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

    /// One sample.
    pub(crate) fn sample(&mut self) -> Result<Sample> {
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

    /// Seconds of processor time that it and the programs it started have taken.
    pub(crate) fn processor_seconds(&self) -> f64 {
        machine::processor_seconds_of_tree(self.child.id())
    }

    /// The next line that is an object with `key`; other talk is passed over.
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

impl Drop for Peer {
    /// Tells it to quit, and ends it if it does not.
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

#[cfg(all(test, unix))]
pub(crate) mod tests {
    use super::*;

    /// A program that answers like a peer whose every sample takes `seconds`.
    pub(crate) fn fake(seconds: &str) -> String {
        format!(
            "echo talk; echo '{{\"ready\": true, \"loss\": 5}}'; while read word; do \
             [ $word = quit ] && exit; echo more talk; echo '{{\"time_s\": {seconds}}}'; done"
        )
    }

    #[test]
    fn a_peer_is_asked_for_samples_and_its_talk_is_passed_over() -> Result<()> {
        let mut peer = Peer::start(&fake("0.25"))?;
        assert_eq!(peer.ready.fields["loss"], 5);
        assert_eq!((peer.sample()?.seconds, peer.sample()?.seconds), (0.25, 0.25));
        Ok(())
    }

    #[test]
    fn what_is_wrong_with_a_peer_is_said() {
        let said = |command: &str| match Peer::start(command).and_then(|mut peer| peer.sample()) {
            Ok(_) => String::new(),
            Err(error) => format!("{error:#}"),
        };
        let missing = said("exit 3");
        assert_eq!(missing, "`exit 3` ended (exit status: 3) before it said `ready`");
        let short = said("echo '{\"ready\": 1}'; read word; echo no");
        assert!(short.ends_with("ended (exit status: 0) before it said `time_s`"), "{short}");
        assert!(said(&fake("0")).ends_with("`time_s` is 0, no time"));
        assert!(said(&fake("null")).ends_with("`time_s` is null, no time"));
    }
}
