//! The command line.

use anyhow::Result;
use serde_json::json;

use crate::{SMALL, run, run_with};

#[test]
fn an_attention_is_read_with_its_defaults() -> Result<()> {
    let words =
        "attention --tokens 16,1k --kv-heads 2 --mask causal+window:1k --pass both --samples 1";
    let ended = run(words)?;
    assert_eq!(ended.lines.len(), 2, "{}", ended.messages);
    for (line, tokens) in ended.lines.iter().zip([16, 1024]) {
        let wanted = json!({
            "tokens": tokens, "heads": 8, "kv_heads": 2, "head_dim": 64, "samples": 1,
            "mask": "causal+window:1k", "pass": "both", "dtype": "f32",
        });
        for (key, value) in wanted.as_object().into_iter().flatten() {
            assert_eq!(&line[key], value, "{key}");
        }
        for key in ["median_s", "gflops", "peak_gflops", "of_peak"] {
            assert!(line[key].as_f64().is_some_and(|figure| figure > 0.0), "{key}: {line}");
        }
    }
    Ok(())
}

#[test]
fn arguments_without_a_meaning_are_refused() -> Result<()> {
    for wrong in [
        "attention --mask diagonal",
        "attention --tokens 0",
        "attention --tokens 4K",
        "attention --tokens 1.5k",
        "attention --tokens -1",
        "attention --tokens k",
        "attention --tokens 99999999999999999999",
        "attention --tokens 99999999999999999M",
        "attention --serve --against x",
        "attention --serve --record x",
        "step --recompute all",
        "ring --than ring --against x",
        "memory --ranks 0",
        "million",
        "all --peers x",
        "step --strategy round",
        "step --python x",
        "step --export a --against-transformers",
        "step --longest 8k --serve",
        "step --model 7b",
        "ring --device gpu",
    ] {
        assert_eq!(run(wrong)?.code, Some(2), "{wrong}");
    }
    Ok(())
}

#[test]
fn a_name_of_results_is_no_path() -> Result<()> {
    for name in ["", "a/b", "../a", "a.b"] {
        let ended = run_with(SMALL, &["--record", name], "")?;
        assert_eq!(ended.code, Some(1));
        assert!(ended.messages.contains("a name of letters, digits"), "{}", ended.messages);
    }
    Ok(())
}

#[test]
fn ranks_of_a_step_cannot_keep_apart() -> Result<()> {
    let ended = run("ring --part step --apart --ranks 2 --threads 2")?;
    assert_eq!(ended.code, Some(1));
    assert!(ended.messages.contains("`--part attention`"), "{}", ended.messages);
    Ok(())
}
