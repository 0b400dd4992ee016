//! Measurements in turn with another program.
#![cfg(unix)]

use anyhow::Result;

use crate::{Ended, SMALL, run_with};

/// A program that answers like a peer whose every sample takes `seconds`.
fn peer(seconds: &str) -> String {
    format!(
        "echo talk; echo '{{\"ready\": true, \"loss\": 5}}'; while read word; do \
         [ $word = quit ] && exit; echo more talk; echo '{{\"time_s\": {seconds}}}'; done"
    )
}

fn against(command: &str, more: &[&str]) -> Result<Ended> {
    run_with(SMALL, &[&["--pairs", "2", "--against", command], more].concat(), "")
}

#[test]
fn the_ratio_to_a_peer_is_held_to_the_bound() -> Result<()> {
    let slow = peer("1e6");
    let ended = against(&slow, &["--at-least", "2"])?;
    assert_eq!((ended.code, ended.lines.len()), (Some(0), 2), "{}", ended.messages);
    let (line, ratio) = (&ended.lines[0], &ended.lines[1]);
    assert_eq!((&line["against"], &line["their_median_s"]), (&slow.as_str().into(), &1e6.into()));
    assert_eq!(ratio["pairs"], 2);
    assert!(ratio["ratio"].as_f64().is_some_and(|ratio| ratio > 2.0), "{ratio}");
    let ended = against(&peer("1e-12"), &["--at-least", "2"])?;
    assert_eq!(ended.code, Some(10));
    assert_eq!(ended.messages, "missed: 0.000 is below 2.000\n");
    Ok(())
}

#[test]
fn a_wrong_peer_is_named_with_its_mistake() -> Result<()> {
    for (command, wanted) in [
        ("exit 3", "error: --against: `exit 3` ended (exit status: 3) before it said `ready`\n"),
        (
            "echo '{\"ready\": 1}'; read word; echo no",
            "ended (exit status: 0) before it said `time_s`\n",
        ),
        (&peer("0"), "`time_s` is 0, no time\n"),
        (&peer("null"), "`time_s` is null, no time\n"),
    ] {
        let ended = against(command, &[])?;
        assert_eq!(ended.code, Some(1), "{command}");
        assert!(ended.messages.ends_with(wanted), "{}", ended.messages);
    }
    Ok(())
}
