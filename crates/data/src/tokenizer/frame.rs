//! What a tokenizer puts around texts.

/// Tokens that are tried as texts, to see what the tokenizer puts around them.
const MOST_PROBES: usize = 1 << 12;

/// The special tokens the tokenizer puts before and after a text.
pub(super) fn frame(tokenizer: &tokenizers::Tokenizer) -> tokenizers::Result<(Vec<u32>, Vec<u32>)> {
    let probe = probe(tokenizer)?;
    let (ids, mask) = (probe.get_ids(), probe.get_special_tokens_mask());
    let before = mask.iter().take_while(|&&special| special == 1).count();
    let after = mask[before..].iter().rev().take_while(|&&special| special == 1).count();
    Ok((ids[..before].to_vec(), ids[ids.len() - after..].to_vec()))
}

/// A short text with what stands around it: a letter, or where the tokenizer has none for it, the first of its own tokens that it knows
/// as a text.
fn probe(tokenizer: &tokenizers::Tokenizer) -> tokenizers::Result<tokenizers::Encoding> {
    let says = |probe: &tokenizers::Encoding| probe.get_special_tokens_mask().contains(&0);
    let letter = tokenizer.encode("a", true);
    if letter.as_ref().is_ok_and(says) {
        return letter;
    }
    let mut tokens: Vec<(String, u32)> = tokenizer.get_vocab(false).into_iter().collect();
    tokens.sort_unstable_by_key(|(_, id)| *id);
    let texts = tokens.into_iter().take(MOST_PROBES).map(|(text, _)| text);
    let known = texts.filter_map(|text| tokenizer.encode(text, true).ok()).find(says);
    known.map_or(letter, Ok)
}
