//! `annulus tokenize`: text to a token cache.

use annulus_data::{Cache, Tokenizer};
use serde_json::json;

use crate::Done;
use crate::arguments::Tokenize;
use crate::console::Bar;
use crate::print;

pub(crate) fn run(arguments: &Tokenize) -> Done {
    let Tokenize { inputs, tokenizer, jsonl, out, json } = arguments;
    let tokenizer = Tokenizer::open(tokenizer)?;
    let mut bar = Bar::new("reading");
    let cache =
        Cache::open(inputs, *jsonl, &tokenizer, out, &mut |done, total| bar.show(done, total))?;
    bar.finish();
    let (tokens, documents) = (cache.tokens(), cache.documents().len());
    if *json {
        let line = json!({
            "tokens": tokens,
            "documents": documents,
            "vocabulary": tokenizer.vocabulary(),
            "fingerprint": cache.fingerprint(),
        });
        print::line(&line.to_string());
    } else {
        let vocabulary = tokenizer.vocabulary();
        let plural = if documents == 1 { "" } else { "s" };
        print::line(&format!("{tokens} tokens of {vocabulary} in {documents} document{plural}"));
    }
    Ok(0)
}
