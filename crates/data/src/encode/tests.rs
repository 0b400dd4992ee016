//! Pieces joined are the whole: many kinds of tokenizers, texts at random, cuts everywhere.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::models::unigram::Unigram;
use tokenizers::normalizers::{Lowercase, NFKC, Prepend, Replace, Sequence};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence as Steps;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::pre_tokenizers::whitespace::Whitespace;
use tokenizers::{
    AddedToken, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
};

use super::*;
use crate::tokenizer::JsonTokenizer;

/// Pieces far smaller than any in use, so that short texts have many joins.
const SMALL: Sizes = Sizes { piece: 128, overlap: 112, limit: 1 << 20, batch: 3 };

/// How Llama 3 splits a text.
const LLAMA: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How GPT-4o splits a text.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Fragments that texts are made of.
const FRAGMENTS: [&str; 30] = [
    "the ",
    " of",
    "and",
    " ",
    "   ",
    "\n",
    "\n\n",
    "\t",
    "don't ",
    "1",
    "2048",
    "3.14 ",
    "a",
    "aa",
    "é",
    "e\u{301}",
    "中文",
    "🦀",
    "👩‍🚀",
    "ﬁ",
    "<|end|>",
    "<|",
    " THE",
    ",",
    "\r\n",
    "!\n",
    "\u{323}",
    "ｘ＝１",
    "слово ",
    "\u{1100}\u{1161}",
];

/// Of a model that learns `FRAGMENTS` from `trainer`.
fn trained(
    normalizer: Option<NormalizerWrapper>,
    splitter: Option<PreTokenizerWrapper>,
    model: impl core::convert::Into<ModelWrapper>,
    mut trainer: TrainerWrapper,
) -> JsonTokenizer {
    let mut inner = tokenizers::Tokenizer::new(model);
    inner.with_normalizer(normalizer).unwrap();
    inner.with_pre_tokenizer(splitter);
    let corpus = FRAGMENTS.map(|fragment| fragment.repeat(7)).join("the crab of 1984 and a ");
    inner.train(&mut trainer, [&corpus, &corpus].into_iter()).unwrap();
    finished(inner)
}

fn finished(mut inner: tokenizers::Tokenizer) -> JsonTokenizer {
    inner.add_special_tokens([AddedToken::from("<|end|>", true).lstrip(true)]).unwrap();
    JsonTokenizer::new(inner.to_string(false).unwrap().as_bytes()).unwrap()
}

fn bpe(
    normalizer: Option<NormalizerWrapper>,
    splitter: Option<PreTokenizerWrapper>,
) -> JsonTokenizer {
    let alphabet = ByteLevel::alphabet().into_iter().collect();
    let trainer = BpeTrainer::builder()
        .vocab_size(400)
        .show_progress(false)
        .special_tokens(vec![AddedToken::from("<unk>", true)])
        .initial_alphabet(alphabet);
    // Of letters that no bytes stand for: without an unknown token they are an error.
    let model = BPE::builder().unk_token("<unk>".into()).build().unwrap();
    trained(normalizer, splitter, model, trainer.build().into())
}

fn llama() -> JsonTokenizer {
    split(LLAMA)
}

fn split(pattern: &str) -> JsonTokenizer {
    let regex = SplitPattern::Regex(pattern.into());
    let split = Split::new(regex, SplitDelimiterBehavior::Isolated, false).unwrap();
    let bytes = ByteLevel::new(false, true, false);
    bpe(None, Some(Steps::new(vec![split.into(), bytes.into()]).into()))
}

/// Byte pairs over the whole text as one word, spaces marked: Llama 2.
fn unsplit() -> JsonTokenizer {
    let steps: Vec<NormalizerWrapper> =
        vec![Prepend::new("▁".into()).into(), Replace::new(" ", "▁").unwrap().into()];
    bpe(Some(Sequence::new(steps).into()), None)
}

/// Byte pairs over the whole text as one word, letters without a token kept as unknown.
fn unknown() -> JsonTokenizer {
    let model = BPE::builder().unk_token("?".into()).build().unwrap();
    let trainer = BpeTrainer::builder().vocab_size(200).show_progress(false).limit_alphabet(20);
    let trainer = trainer.special_tokens(vec![AddedToken::from("?", true)]).build();
    trained(None, None, model, trainer.into())
}

/// What a unigram model knows of `FRAGMENTS`; other letters are unknown.
const TOKENS: [&str; 31] = [
    "<unk>", "▁", "▁t", "▁th", "the", "he", "t", "h", "e", "▁o", "of", "o", "f", "▁an", "and",
    "nd", "n", "d", "a", "aa", "aaa", "▁do", "don", "n'", "'t", "1", "2", "04", "48", "3.1", "éa",
];

/// The fewest tokens are best. Cuts into as many are as good but for rounding, which depends on all of the word before.
fn unigram() -> JsonTokenizer {
    let score = |token: &str| -0.1 - 0.7 * token.chars().count() as f64;
    let vocabulary = TOKENS.map(|token| (token.to_owned(), score(token))).to_vec();
    let model = Unigram::from(vocabulary, Some(0), false).unwrap();
    let mut inner = tokenizers::Tokenizer::new(model);
    inner.with_pre_tokenizer(Some(Metaspace::new('▁', PrependScheme::Always, true)));
    finished(inner)
}

fn whole(json: &JsonTokenizer, text: &str) -> Vec<u32> {
    json.inner.encode(text, false).unwrap().get_ids().to_vec()
}

fn joined(json: &JsonTokenizer, sizes: Sizes, text: &str) -> Result<Vec<u32>, DataError> {
    let mut ids = Vec::new();
    let mut into = |part: &[u32]| {
        ids.extend_from_slice(part);
        Ok(())
    };
    let mut pieces = Pieces::new(json, sizes);
    pieces.push(text, &mut into)?;
    pieces.advance(true, &mut into)?;
    Ok(ids)
}

fn texts() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        8 => prop::sample::select(&FRAGMENTS[..]).prop_map(str::to_owned),
        1 => (prop::sample::select(&FRAGMENTS[..]), 1..60usize).prop_map(|(f, n)| f.repeat(n)),
        1 => "[a-z]{1,12} ",
        1 => "\\PC{1,6}",
    ];
    prop::collection::vec(fragment, 0..400).prop_map(|fragments| fragments.concat())
}

/// Texts per tokenizer.
const CASES: u32 = 40;

fn check(json: &JsonTokenizer) {
    let config =
        ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() };
    let same = TestRunner::new(config).run(&texts(), |text| {
        prop_assert_eq!(joined(json, SMALL, &text).unwrap(), whole(json, &text));
        Ok(())
    });
    same.unwrap();
}

#[test]
fn joined_byte_pairs_are_the_whole() {
    check(&bpe(None, Some(ByteLevel::default().into())));
    check(&llama());
    check(&split(GPT4O));
    check(&bpe(None, Some(Whitespace {}.into())));
    let spaces = Metaspace::new('▁', PrependScheme::First, true);
    check(&bpe(None, Some(spaces.into())));
}

#[test]
fn joined_byte_pairs_without_a_splitter_are_the_whole() {
    check(&bpe(None, None));
    check(&unsplit());
    let json = unknown();
    assert!(json.exact);
    check(&json);
}

#[test]
fn joined_rewritten_texts_are_the_whole() {
    let steps: Vec<NormalizerWrapper> = vec![NFKC.into(), Lowercase.into()];
    let rewrite = Sequence::new(steps).into();
    check(&bpe(Some(rewrite), Some(ByteLevel::default().into())));
}

#[test]
fn joined_unigrams_are_the_whole() {
    check(&unigram());
}

/// What has no anchor, or seems to agree by accident, for longer than an overlap.
#[test]
fn long_runs_are_joined() {
    let runs = [
        // Groups of three digits begin where the number begins, however far away that is, ...
        format!("x{}", "1234567890".repeat(500)),
        // ... also where single digits look alike in every group: only later do pairs tell.
        format!("x{}{}", "1".repeat(1001), "1984".repeat(200)),
        format!("{} x {}", "20".repeat(700), "4".repeat(700)),
        // What follows a mark takes the line breaks with it, but not the space after them.
        format!("and!{}   \n the", "\n".repeat(900)),
        format!("and{}<|end|>the{}of", " ".repeat(900), " ".repeat(900)),
        format!("and <|end|>{}<|end|>", "\r\n".repeat(900)),
        format!("{} THE {}", "a".repeat(3001), "THE".repeat(999)),
        format!("e{}", "\u{301}\u{323}".repeat(500)),
        "中文".repeat(700),
        "🦀👩‍🚀".repeat(300),
        "<|end|>".repeat(300),
        "don't".repeat(500),
        "aGVsbG8gd29ybGQ+/".repeat(300),
    ];
    let bytes = || Some(ByteLevel::default().into());
    let spaces = Metaspace::new('▁', PrependScheme::First, true);
    let steps: Vec<NormalizerWrapper> = vec![NFKC.into(), Lowercase.into()];
    let rewritten = bpe(Some(Sequence::new(steps).into()), bytes());
    let tokenizers = [
        llama(),
        split(GPT4O),
        bpe(None, bytes()),
        bpe(None, Some(spaces.into())),
        unsplit(),
        unknown(),
        rewritten,
    ];
    for (which, json) in tokenizers.iter().enumerate() {
        assert!(json.cuts.is_ok());
        for text in &runs {
            let found = joined(json, SMALL, text).unwrap();
            assert_eq!(found, whole(json, text), "tokenizer {which}, {text:.20}");
        }
    }
}

/// Nothing is known of other patterns: documents are encoded whole, up to a limit.
#[test]
fn what_is_not_known_is_not_cut() {
    let json = split(r"\p{L}{1,20}|\s+|.");
    let step = json.cuts.as_ref().unwrap_err();
    assert_eq!(step, r#"the splitter `Split` of {"Regex":"\\p{L}{1,20}|\\s+|."}"#);
    let text = "and ".repeat(500);
    assert_eq!(joined(&json, SMALL, &text).unwrap(), whole(&json, &text));
    let sizes = Sizes { limit: 1000, ..SMALL };
    let error = joined(&json, sizes, &text).unwrap_err();
    assert!(matches!(error, DataError::Whole { limit: 1000, .. }), "{error}");
    assert!(error.hint().unwrap().contains("up to 1000 bytes"));
}

#[test]
fn pieces_of_the_size_in_use_are_joined() {
    let text = "It was the best of times, it was the worst of times 1859.\n".repeat(9000);
    let json = llama();
    assert_eq!(joined(&json, Sizes::large(1), &text).unwrap(), whole(&json, &text));
}

/// A word that is unknown as a whole has no token that could tell two pieces' places apart.
#[test]
fn a_text_that_cannot_be_cut_is_refused() {
    use tokenizers::models::wordpiece::WordPiece;
    let vocabulary = [("[UNK]", 0), ("a", 1), ("##a", 2)];
    let vocabulary = vocabulary.map(|(token, id)| (token.to_owned(), id));
    let model = WordPiece::builder().vocab(vocabulary).build().unwrap();
    let mut inner = tokenizers::Tokenizer::new(model);
    inner.with_pre_tokenizer(Some(Whitespace {}));
    let json = JsonTokenizer::new(inner.to_string(false).unwrap().as_bytes()).unwrap();
    let sizes = Sizes { limit: 1000, ..SMALL };
    let error = joined(&json, sizes, &format!("a a {}", "a".repeat(100_000))).unwrap_err();
    assert!(matches!(error, DataError::NoCut { offset: 0, bytes: 1920 }), "{error}");
}
