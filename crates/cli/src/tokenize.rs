//! `annulus tokenize`, `tokenizer train`: text to a token cache, and to a tokenizer.

use annulus_data::{Cache, Records, Texts, Tokenizer, train_tokenizer};
use serde_json::json;

use crate::Done;
use crate::arguments::{Tokenize, TrainTokenizer};
use crate::console::{Meter, Unit};
use crate::failure::Failure;
use crate::{data, hub, print};

pub(crate) fn run(arguments: &Tokenize) -> Done {
    let Tokenize { inputs, tokenizer, form, out, verify_cache, json } = arguments;
    let records = form.records();
    let tokenizer = Tokenizer::open(&hub::tokenizer(tokenizer)?)?;
    let meter = Meter::new(Unit::Bytes);
    let texts = Texts::new(inputs, records, &tokenizer);
    data::warn_of_left_out(inputs, records, &texts)?;
    let cache = Cache::open(&texts, out, *verify_cache, &mut |now| meter.tell(now))?;
    meter.finish();
    let (tokens, documents) = (cache.tokens(), cache.documents().len());
    let (vocabulary, fingerprint) = (tokenizer.vocabulary(), cache.fingerprint());
    let value = || {
        json!({
            "tokens": tokens, "documents": documents, "vocabulary": vocabulary,
            "fingerprint": fingerprint,
        })
    };
    let text = || format!("{tokens} tokens of {vocabulary} in {}", data::documents(documents));
    print::either(*json, value, text)?;
    Ok(0)
}

pub(crate) fn train(arguments: &TrainTokenizer) -> Done {
    let TrainTokenizer { inputs, vocab, jsonl, out } = arguments;
    let records = if *jsonl { Records::Lines } else { Records::Text };
    if out.exists() {
        let message = format!("`{}` is there already", out.display());
        return Err(Failure::usage(message, "remove it, or write elsewhere: `--out FILE`"));
    }
    let found = train_tokenizer(inputs, records, *vocab, out)?.vocabulary;
    print::line(&format!("{found} tokens in {}", out.display()))?;
    if found < *vocab {
        print::say(&format!("{found} of {vocab} tokens: the text has no more pairs to merge"));
    }
    Ok(0)
}
