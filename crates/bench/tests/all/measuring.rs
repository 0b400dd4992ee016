//! Measurements alone, between two ways, and on request.

use anyhow::Result;

use crate::{SMALL, run, run_with};

#[test]
fn the_figure_of_a_subject_alone_is_held_to_the_bound() -> Result<()> {
    assert_eq!(run(&format!("{SMALL} --at-least 0"))?.code, Some(0));
    let ended = run(&format!("{SMALL} --at-least 1000"))?;
    assert_eq!(ended.code, Some(10));
    assert!(ended.messages.starts_with("missed: "), "{}", ended.messages);
    assert!(ended.messages.ends_with(" is below 1000.000\n"), "{}", ended.messages);
    Ok(())
}

#[test]
fn a_bound_of_a_subject_without_a_figure_is_refused() -> Result<()> {
    let ended = run("step --tokens 16 --layers 1 --threads 1 --samples 1 --at-least 0.5")?;
    assert_eq!((ended.code, ended.lines.len()), (Some(1), 0), "{}", ended.messages);
    assert!(ended.messages.contains("`--at-least` is a ratio"), "{}", ended.messages);
    Ok(())
}

#[test]
fn ranks_share_an_attention_in_both_directions() -> Result<()> {
    for pass in ["forward", "backward", "both"] {
        let words = format!(
            "ring --strategy megatron --than ring --tokens 24 --ranks 3 --head-dim 4 --pass {pass} --threads 4 --pairs 1"
        );
        let ended = run(&words)?;
        assert_eq!((ended.code, ended.lines.len()), (Some(0), 2), "{}", ended.messages);
        let (line, ratio) = (&ended.lines[0], &ended.lines[1]);
        assert_eq!(
            (&line["strategy"], &line["than"]["strategy"]),
            (&"megatron".into(), &"ring".into())
        );
        assert!(ratio["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{ratio}");
    }
    Ok(())
}

#[test]
fn a_step_on_the_cpu_is_measured_without_a_gpu() -> Result<()> {
    let ended = run("step --tokens 16 --layers 1 --threads 1 --samples 1")?;
    assert_eq!((ended.code, ended.lines.len()), (Some(0), 1), "{}", ended.messages);
    let line = &ended.lines[0];
    assert_eq!(line["device"], "cpu");
    assert!(line["loss"].as_f64().is_some_and(|loss| loss > 0.0), "{line}");
    assert!(line.get("gpu_mib").is_none() && line.get("gpu").is_none(), "{line}");
    Ok(())
}

#[test]
fn one_sample_is_served_for_every_go_after_the_warm_up() -> Result<()> {
    for (input, samples) in [("go\n\ngo\nquit\ngo\n", 2), ("", 0)] {
        let ended = run_with(SMALL, &["--serve"], input)?;
        assert_eq!((ended.code, ended.lines.len()), (Some(0), samples + 1));
        assert_eq!(
            (&ended.lines[0]["ready"], &ended.lines[0]["tokens"]),
            (&true.into(), &16.into())
        );
        let times = ended.lines[1..].iter().map(|line| line["time_s"].as_f64());
        assert!(times.into_iter().all(|time| time.is_some_and(|time| time > 0.0)));
    }
    let ended = run_with(SMALL, &["--serve"], "stop\n")?;
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.messages, "error: `stop` came in; `go` and `quit` are understood\n");
    Ok(())
}
